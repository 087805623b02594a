"""Search spaces of the literature; importing this package registers them."""

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

__all__ = [
    "fbnet",
    "hiaml",
    "inception",
    "nasbench101",
    "nasbench201",
    "nds",
    "ofa",
    "tiny_resnet",
    "two_path",
]
