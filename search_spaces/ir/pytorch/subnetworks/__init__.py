"""Sub-networks of a trained module: what belongs together, what can be left out, and the smaller
modules.
"""

from search_spaces.ir.pytorch.subnetworks.analysis import Choice, Prunable, Settings, atoms_inside
from search_spaces.ir.pytorch.subnetworks.groups import Group
from search_spaces.ir.pytorch.subnetworks.importance import Importance

__all__ = ["Choice", "Group", "Importance", "Prunable", "Settings", "atoms_inside"]
