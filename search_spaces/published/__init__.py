"""Search spaces of the literature. Importing this package registers them all."""

from search_spaces.published import (
    fbnet,
    hiaml,
    inception,
    nasbench101,
    nasbench201,
    nds,
    ofa,
    tiny_resnet,
    two_path,
)

__all__ = ["fbnet", "hiaml", "inception", "nasbench101", "nasbench201", "nds", "ofa", "tiny_resnet", "two_path"]
