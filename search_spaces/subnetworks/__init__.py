"""Sub-networks of a trained model as a search space: what can be left out of it, and what stays.

`space` is what users call. The other modules import torch, and are imported by functions alone:

1. `reading`: one call of the model shows its operators, and which tensors these own.
2. `coupling`: every operator says which axes are equal; `axes` is the algebra of it.
3. `groups`: channels, heads, blocks and kernels that can be chosen.
4. `prunable`: tries the choices on the model; what fails stays whole and is named.
5. `resizing`, `slicing`: graph and module of a sub-network. `importance`, `stages`: which channels and
   blocks it keeps.

`weight_files` loads trained weights; `attention` is torch's with fewer heads than its width allows.
"""

from search_spaces.subnetworks.space import Subnetworks

__all__ = ["Subnetworks"]
