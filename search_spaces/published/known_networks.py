"""Published networks of the cell spaces, as genotypes: `get_space("darts", width=36,
cells=20).parse(DARTS_V2)`.

The cells are those in the code of DARTS (arXiv 1806.09055) and NDS (arXiv 1905.13214); that of ENAS
follows the arc its authors released. Millions of parameters without auxiliary heads:

    network       CIFAR-10: width, cells, here, published   ImageNet: width, cells, here, published
    NASNET_A      32, 20: 3.06, 3.1 in DARTS' code          44, 14: 4.77, 5.3 with a concatenated cell input
    AMOEBANET_A   36, 20: 3.15, 3.1 in DARTS' code          50, 14: 4.99, 5.1 in its own skeleton
    PNASNET_5     48, 9:  3.18, 3.2                         54, 9:  5.07, 5.1
    ENAS          36, 17: 3.729430, 3.894372 in its own code, whose cells have one more convolution; 4.6 in its paper
    DARTS_V1      36, 20: 3.169414                          48, 14: 4.51
    DARTS_V2      36, 20: 3.349342, the same                48, 14: 4.718752, 4.7
"""

from __future__ import annotations

NASNET_A = """Genotype(
    normal=[('sep_conv_5x5', 1), ('sep_conv_3x3', 0), ('sep_conv_5x5', 0), ('sep_conv_3x3', 0), ('avg_pool_3x3', 1),
            ('skip_connect', 0), ('avg_pool_3x3', 0), ('avg_pool_3x3', 0), ('sep_conv_3x3', 1), ('skip_connect', 1)],
    normal_concat=[2, 3, 4, 5, 6],
    reduce=[('sep_conv_5x5', 1), ('sep_conv_7x7', 0), ('max_pool_3x3', 1), ('sep_conv_7x7', 0), ('avg_pool_3x3', 1),
            ('sep_conv_5x5', 0), ('skip_connect', 3), ('avg_pool_3x3', 2), ('sep_conv_3x3', 2), ('max_pool_3x3', 1)],
    reduce_concat=[4, 5, 6])"""
"""NASNet-A, arXiv 1707.07012; space `nasnet`."""

AMOEBANET_A = """Genotype(
    normal=[('avg_pool_3x3', 0), ('max_pool_3x3', 1), ('sep_conv_3x3', 0), ('sep_conv_5x5', 2), ('sep_conv_3x3', 0),
            ('avg_pool_3x3', 3), ('sep_conv_3x3', 1), ('skip_connect', 1), ('skip_connect', 0), ('avg_pool_3x3', 1)],
    normal_concat=[4, 5, 6],
    reduce=[('avg_pool_3x3', 0), ('sep_conv_3x3', 1), ('max_pool_3x3', 0), ('sep_conv_7x7', 2), ('sep_conv_7x7', 0),
            ('avg_pool_3x3', 1), ('max_pool_3x3', 0), ('max_pool_3x3', 1), ('conv_7x1_1x7', 0), ('sep_conv_3x3', 5)],
    reduce_concat=[3, 4, 6])"""
"""AmoebaNet-A, arXiv 1802.01548; space `amoeba`."""

PNASNET_5 = """Genotype(
    normal=[('sep_conv_5x5', 0), ('max_pool_3x3', 0), ('sep_conv_7x7', 1), ('max_pool_3x3', 1), ('sep_conv_5x5', 1),
            ('sep_conv_3x3', 1), ('sep_conv_3x3', 4), ('max_pool_3x3', 1), ('sep_conv_3x3', 0), ('skip_connect', 1)],
    normal_concat=[2, 3, 4, 5, 6],
    reduce=[('sep_conv_5x5', 0), ('max_pool_3x3', 0), ('sep_conv_7x7', 1), ('max_pool_3x3', 1), ('sep_conv_5x5', 1),
            ('sep_conv_3x3', 1), ('sep_conv_3x3', 4), ('max_pool_3x3', 1), ('sep_conv_3x3', 0), ('skip_connect', 1)],
    reduce_concat=[2, 3, 4, 5, 6])"""
"""PNASNet-5, arXiv 1712.00559, one cell for both kinds; space `pnas`."""

ENAS = """Genotype(
    normal=[('avg_pool_3x3', 0), ('sep_conv_3x3', 0), ('skip_connect', 0), ('sep_conv_5x5', 0), ('skip_connect', 0),
            ('sep_conv_5x5', 1), ('sep_conv_3x3', 1), ('sep_conv_5x5', 0), ('avg_pool_3x3', 0), ('sep_conv_5x5', 1)],
    normal_concat=[2, 3, 4, 5, 6],
    reduce=[('sep_conv_3x3', 1), ('sep_conv_3x3', 1), ('max_pool_3x3', 0), ('avg_pool_3x3', 0), ('sep_conv_5x5', 1),
            ('sep_conv_5x5', 3), ('sep_conv_3x3', 1), ('skip_connect', 0), ('max_pool_3x3', 0), ('sep_conv_5x5', 1)],
    reduce_concat=[2, 4, 5, 6])"""
"""ENAS, micro search on CIFAR-10, arXiv 1802.03268; space `enas`."""

DARTS_V1 = """Genotype(
    normal=[('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('skip_connect', 0), ('sep_conv_3x3', 1), ('skip_connect', 0),
            ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('skip_connect', 2)],
    normal_concat=[2, 3, 4, 5],
    reduce=[('max_pool_3x3', 0), ('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 0), ('max_pool_3x3', 0),
            ('skip_connect', 2), ('skip_connect', 2), ('avg_pool_3x3', 0)],
    reduce_concat=[2, 3, 4, 5])"""
"""DARTS, first order, arXiv 1806.09055; space `darts`."""

DARTS_V2 = """Genotype(
    normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 1),
            ('skip_connect', 0), ('skip_connect', 0), ('dil_conv_3x3', 2)],
    normal_concat=[2, 3, 4, 5],
    reduce=[('max_pool_3x3', 0), ('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1), ('max_pool_3x3', 0),
            ('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)],
    reduce_concat=[2, 3, 4, 5])"""
"""DARTS, second order, arXiv 1806.09055; space `darts`."""
