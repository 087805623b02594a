"""FBNet exactly as HW-NAS-Bench measured it: parameters by a closed formula, notation, small
variants.
"""

from __future__ import annotations

import csv
import gzip
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import InputError, get_space, params
from search_spaces.published.fbnet import LAYERS, NAMES
from search_spaces.testing import check_space

ALL_SKIPS = str([8] * LAYERS)
blocks = st.lists(st.integers(0, 8), min_size=LAYERS, max_size=LAYERS)


def _formula(chosen: list[int], head: int, classes: int) -> int:
    """Trained weights of the published skeleton, written down without the network builder.

    A convolution from a to b channels in g groups has k² a b / g weights, batch normalization 2 per
    channel.
    """
    per_layer = [16] + [24] * 4 + [32] * 4 + [64] * 4 + [112] * 4 + [184] * 4 + [352]
    total = 3 * 9 * 16 + 2 * 16
    before = 16
    for layer, (block, after) in enumerate(zip(chosen, per_layer, strict=True)):
        if block == 8:
            total += (
                0 if before == after and layer not in (5, 9, 17) else before * after + 2 * after
            )
        else:
            kernel, (expansion, groups) = (
                (3, 5)[block // 4],
                ((1, 1), (1, 2), (3, 1), (6, 1))[block % 4],
            )
            inner = before * expansion
            total += (
                before * inner // groups
                + kernel**2 * inner
                + inner * after // groups
                + 4 * inner
                + 2 * after
            )
        before = after
    return total + 352 * head + 2 * head + head * classes + classes


@given(blocks)
@settings(max_examples=50, deadline=None)
def test_parameters_equal_a_closed_formula(chosen: list[int]) -> None:
    for skeleton, head, classes in (("cifar100", 1504, 100), ("imagenet", 1984, 1000)):
        space = get_space("fbnet", skeleton=skeleton)
        assert space.params(space.parse(str(chosen))) == _formula(chosen, head, classes)


def test_parameters_of_the_onnx_model_equal_the_closed_formula() -> None:
    space, rng = get_space("fbnet"), np.random.default_rng(0)
    for _ in range(5):
        chosen = rng.integers(9, size=LAYERS).tolist()
        assert params(space.to_onnx(space.parse(str(chosen)))) == _formula(chosen, 1504, 100)


@pytest.mark.parametrize(
    ("skeleton", "stem_size", "last_size"),
    [("cifar100", 32, 4), ("imagenet", 112, 7)],
)
def test_strides_are_the_published_ones(skeleton: str, stem_size: int, last_size: int) -> None:
    space = get_space("fbnet", skeleton=skeleton)
    shapes = space.graph(space.parse(ALL_SKIPS)).shapes
    assert shapes[1] == ("N", 16, stem_size, stem_size)
    assert shapes[-4][2:] == (last_size, last_size)


def test_skips_that_keep_the_shape_compute_nothing() -> None:
    space = get_space("fbnet")
    first = space.parse("8-0-8-1-2-" + "-".join(["8"] * 17))
    moved = space.parse("8-0-1-8-2-" + "-".join(["8"] * 17))
    assert space.to_text(first) == space.to_text(moved)
    assert len(space.graph(space.parse(ALL_SKIPS)).nodes) == 2 + 6 * 2 + 2 + 3


@pytest.mark.slow
@given(blocks, blocks)
@settings(max_examples=50, deadline=None)
def test_different_networks_have_different_texts(a: list[int], b: list[int]) -> None:
    """Two lists give the same network only if they differ in the position of identity skips within
    a stage.
    """

    def network(chosen: list[int]) -> list[list[int]]:
        stages = [chosen[:1], *(chosen[i : i + 4] for i in range(1, 21, 4)), chosen[21:]]
        first = stages[0] if stages[0] != [8] else []
        return [first, *([stage[0], *(b for b in stage[1:] if b != 8)] for stage in stages[1:])]

    space = get_space("fbnet")
    texts = [space.to_text(space.parse(str(chosen))) for chosen in (a, b)]
    assert (texts[0] == texts[1]) == (network(a) == network(b))
    one_changed = [(a[0] + 1) % 9, *a[1:]]
    assert space.to_text(space.parse(str(one_changed))) != texts[0]


@given(blocks)
@settings(max_examples=50, deadline=None)
def test_notation_is_read_and_written(chosen: list[int]) -> None:
    space = get_space("fbnet")
    arch = space.parse(str(chosen))
    assert space.format(arch) == str(chosen)
    names = [NAMES[block] for block in chosen]
    for native in (str(names), "-".join(names), "-".join(map(str, chosen)), f" {tuple(chosen)}"):
        assert space.parse(native) == arch


@pytest.mark.parametrize(
    ("native", "message"),
    [
        ("", "unknown FBNet block ''"),
        ("0-1-2", "22 blocks, not 3"),
        ("[0, 1", "not a list of 22 FBNet blocks"),
        ("[" + "0, " * 21 + "9]", "unknown FBNet block '9'"),
        (str(["k3_e2"] * 22), "did you mean 'k3_e"),
        ("(3)", "not a list of 22 FBNet blocks"),
    ],
)
def test_wrong_notation_is_refused(native: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_space("fbnet").parse(native)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'cifar100'"):
        get_space("fbnet", skeleton="cifar10")
    with pytest.raises(InputError, match="must be positive"):
        get_space("fbnet", width=0)


@pytest.mark.parametrize("width", [0.1, 0.25, 0.75])
def test_narrow_network_for_tiny_images_conforms(width: float) -> None:
    space = get_space("fbnet", width=width, input_shape=(1, 8, 8), num_classes=10)
    check_space(space, count=5)
    assert get_space("fbnet", **space.options).options == space.options


@pytest.mark.skipif(
    not (os.environ.get("NAS_DATA") and Path(os.environ["NAS_DATA"], "fbnet.csv.gz").exists()),
    reason="the real FBNet table is not there: set NAS_DATA to a folder with fbnet.csv.gz",
)
def test_table_of_latencies_is_read() -> None:
    space = get_space("fbnet")
    with gzip.open(Path(os.environ["NAS_DATA"], "fbnet.csv.gz"), "rt") as file:
        for row in islice(csv.DictReader(file), 200):
            assert space.format(space.parse(row["arch"])) == f"[{row['arch'].replace('-', ', ')}]"
