"""The GENNAPE families: parameters by closed formulas from the notation, exact notation, the
families' rules.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import InputError, get_space
from search_spaces.choosers import EnumerationChooser
from search_spaces.parameter_names import plain_names
from search_spaces.published.hiaml import BLOCKS
from search_spaces.published.inception import _count_blocks, _suggest_stage
from search_spaces.testing import check_space

NAMES = ("hiaml", "two-path", "inception")
SMALL = {"hiaml": {"channels": 4}, "two-path": {"channels": 4}, "inception": {"channels": 8}}


def _conv(area: int, before: int, after: int, bias: int = 0) -> int:
    """Parameters of a convolution and its batch normalization."""
    return area * before * after + (2 + bias) * after


# --- HiAML

# 3×3, 1×1 and 1×3-3×1 convolutions of a block that keeps its channels
REGULAR = {
    "hiaml_z": (1, 0, 1),
    "hiaml_a22": (1, 2, 0),
    "hiaml_b23": (0, 0, 2),
    "hiaml_j30": (1, 0, 1),
    "hiaml_g30": (0, 1, 2),
    "hiaml_r30": (0, 1, 2),
    "hiaml_l20": (1, 1, 0),
    "hiaml_t20": (0, 1, 1),
    "hiaml_t31": (0, 1, 2),
    "hiaml_src0": (2, 1, 0),
    "hiaml_src1": (2, 1, 0),
    "hiaml_src3": (1, 3, 0),
    "hiaml_src7": (0, 1, 2),
    "hiaml_src8": (0, 2, 1),
}
# of a block that doubles them: those from c to 2c channels, and those that keep c (the others keep
# 2c)
WIDENING = {
    "hiaml_z": (1, 0, 0),
    "hiaml_a22": (1, 0, 0),
    "hiaml_b23": (0, 1, 1),
    "hiaml_j30": (1, 1, 0),
    "hiaml_g30": (0, 1, 1),
    "hiaml_r30": (0, 2, 1),
    "hiaml_l20": (1, 0, 0),
    "hiaml_t20": (0, 1, 1),
    "hiaml_t31": (0, 2, 1),
    "hiaml_src0": (0, 1, 0),
    "hiaml_src1": (1, 1, 0),
    "hiaml_src3": (1, 1, 0),
    "hiaml_src7": (0, 1, 0),
    "hiaml_src8": (0, 1, 0),
}
ADDED_PROJECTIONS = {"hiaml_b23": 1, "hiaml_j30": 1, "hiaml_g30": 1, "hiaml_r30": 2, "hiaml_t31": 2}
NARROW = {"hiaml_src1": (1, 0, 0), "hiaml_src3": (0, 1, 0)}


def _weights(counts: np.ndarray, before: int, after: int) -> int:
    square, point, lines = (int(n) for n in counts)
    pair = _conv(3, before, after) + _conv(3, after, after)
    return square * _conv(9, before, after) + point * _conv(1, before, after) + lines * pair


def _regular(name: str, c: int) -> int:
    return _weights(np.array(REGULAR[name]), c, c)


def _reduction(name: str, c: int) -> int:
    wide, narrow = np.array(WIDENING[name]), np.array(NARROW.get(name, (0, 0, 0)))
    projections = np.array((0, ADDED_PROJECTIONS.get(name, 0), 0))
    rest = np.array(REGULAR[name]) + projections - wide - narrow
    return _weights(wide, c, 2 * c) + _weights(narrow, c, c) + _weights(rest, 2 * c, 2 * c)


@given(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_hiaml_params_follow_the_blocks(names: list[str]) -> None:
    space = get_space("hiaml")
    stages = (
        2 * _regular(names[0], 64)
        + _reduction(names[1], 64)
        + _regular(names[1], 128)
        + 2 * _regular(names[2], 128)
        + _reduction(names[3], 128)
        + _regular(names[3], 256)
    )
    assert space.params(space.parse(repr(names))) == _conv(9, 3, 64) + stages + 256 * 10 + 10


def test_hiaml_has_38416_different_networks() -> None:
    """One stage is enough to distinguish blocks, both in stages that reduce and in others."""
    space = get_space("hiaml", channels=4)
    assert space.size == 38416
    for stage in range(4):
        names = [["hiaml_z"] * stage + [name] + ["hiaml_z"] * (3 - stage) for name in BLOCKS]
        assert len({space.to_text(space.parse(repr(native))) for native in names}) == len(BLOCKS)


# --- Two-Path


def _two_path_operation(name: str, before: int, after: int) -> int:
    k = int(name[-1])
    if "pool" in name:
        return 2 * before
    if name.startswith("conv"):
        return _conv(k * k, before, after)
    if name.startswith("inception_s"):
        return _conv(k, before, after) + _conv(k, after, after)
    inner = {"r2": before // 2, "r4": before // 4, "e2": before * 2}.get(
        name.split("-")[1] if "-" in name else ""
    )
    return _conv(k * k, before, inner or before) + _conv(k * k, inner or before, after)


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_two_path_params_follow_the_operations(seed: int) -> None:
    space = get_space("two-path")
    arch = space.sample(np.random.default_rng(seed))
    native = ast.literal_eval(space.format(arch))
    expected = _conv(9, 3, 32) + _conv(9, 32, 32) + _conv(9, 256, 512) + 512 * 10 + 10
    for path in ("path1", "path2"):
        width = 32
        for b, operations in enumerate(native[path]):
            widen = b in native[f"{path}_reduce_inds"]
            for name in operations:
                widens = (
                    widen and "pool" not in name and name != "conv1x1" and not name.endswith("k1")
                )
                after = 2 * width if widens else width
                expected += _two_path_operation(name, width, after)
                width, widen = after, widen and not widens
    assert space.params(arch) == expected


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_two_path_networks_keep_the_rules(seed: int) -> None:
    space = get_space("two-path")
    native = ast.literal_eval(space.format(space.sample(np.random.default_rng(seed))))
    supplements = {"conv1x1", "bottleneck-r2-k1", "bottleneck-e2-k1", "avgpool3x3", "maxpool3x3"}
    for path in ("path1", "path2"):
        assert 2 <= len(native[path]) <= 4
        assert len(set(native[f"{path}_reduce_inds"])) == 2
        for operations in native[path]:
            extra = sum(name in supplements for name in operations)
            assert extra <= 1
            assert 1 <= len(operations) - extra <= 3


def test_two_path_size_counts_pairs_of_paths() -> None:
    blocks = 8 + (8**2 + 2 * 5 * 8) + (8**3 + 3 * 5 * 8**2)
    assert get_space("two-path").size == (blocks**2 + 3 * blocks**3 + 6 * blocks**4) ** 2


# --- Inception

RESIZING = ("conv", "inception", "depthwise", "double")


def _inception_operation(name: str, before: int, after: int, stride: int) -> int:
    k = int(name[-1])
    if "pool" in name:
        return 2 * before
    if name.startswith("conv"):
        return _conv(k * k, before, after, 1)
    if name.startswith("double"):
        return _conv(1, before, after, 1) + _conv(1, after, after, 1)
    if name.startswith("depthwise"):
        return (before * after if before != after else 0) + _conv(k * k, 1, after, 1)
    if name.startswith("inception_s"):
        return _conv(k, before, after, 1) + _conv(k, after, after, 1)
    half, other = after // 2, after - after // 2
    second = _conv(k, half, half, 1) + _conv(k, other, other, 1) if stride == 2 else 0
    return _conv(k, before, half, 1) + _conv(k, before, other, 1) + second


def _inception_path(path: dict[str, Any], before: int, stride: int) -> int:
    operations, total, strided = path["ops"], 0, False
    places = [i for i, name in enumerate(operations) if name.startswith(RESIZING)]
    for i, name in enumerate(operations):
        after = {places[-1]: path["C_out"], places[0]: path["C_internal"]}.get(i, before)
        first = not strided and name.startswith(RESIZING) and name not in ("conv1x1", "double1x1")
        total += _inception_operation(name, before, after, stride if first else 1)
        before, strided = after, strided or first
    return total


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_inception_params_follow_the_operations(seed: int) -> None:
    space = get_space("inception")
    arch = space.sample(np.random.default_rng(seed))
    expected, before = _conv(9, 3, 32, 1) + _conv(9, 256, 512, 1) + 512 * 10 + 10, 32
    for number, stage in enumerate(ast.literal_eval(space.format(arch))):
        width, joined = 32 * 2**number, sum(path["C_out"] for path in stage["paths"])
        for index in range(stage["n_blocks"]):
            stride = 2 if number and not index else 1
            expected += sum(_inception_path(path, before, stride) for path in stage["paths"])
            expected += _conv(1, joined, width, 1) if joined != width else 0
            before = width
    assert space.params(arch) == expected


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_inception_networks_keep_the_rules(seed: int) -> None:
    space = get_space("inception")
    for number, stage in enumerate(
        ast.literal_eval(space.format(space.sample(np.random.default_rng(seed))))
    ):
        paths = stage["paths"]
        lengths = [len(path["ops"]) for path in paths]
        least, most = {1: (1, 3), 2: (1, 4), 3: (2, 8), 4: (2, 10)}[len(paths)]
        assert min(lengths) >= least
        assert sum(lengths) <= most
        assert 2 <= stage["n_blocks"] <= 6
        assert all(
            sum(name in ("conv1x1", "double1x1") or "pool" in name for name in p["ops"]) <= 1
            for p in paths
        )
        assert all(path["C_internal"] >= 16 and path["C_out"] >= 16 for path in paths)
        assert number == 0 or sum(path["C_out"] for path in paths) >= 32 * 2**number


def test_inception_size_counts_the_choices() -> None:
    """Counted by enumeration of one path."""
    chooser, count = EnumerationChooser([0, 0]), 0
    while True:
        _, paths = _suggest_stage(chooser, "stage", 64)
        if len(paths) > 1:
            break
        count += 1
        next_positions = chooser.next_positions()
        assert next_positions is not None
        chooser = EnumerationChooser(next_positions)
    two = 8**2 * 3 + 2 * 8 * 2 * 3 + 2 * 8 * 2
    three = 8**3 * 3 + 3 * 64 * 2 * 3 + 3 * 64 * 2 * 3
    assert count == 8 + two + three
    assert _count_blocks(64) > count
    assert get_space("inception").size == np.prod(
        [5 * _count_blocks(32 * 2**n) for n in range(4)], dtype=object
    )


# --- all three


@pytest.mark.parametrize("name", NAMES)
def test_every_promise_of_a_search_space_is_kept(name: str) -> None:
    check_space(get_space(name, **SMALL[name], num_classes=7), count=3)


@given(st.sampled_from(NAMES), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_notation_is_read_and_written(name: str, seed: int) -> None:
    space = get_space(name)
    arch = space.sample(np.random.default_rng(seed))
    assert space.parse(space.format(arch)) == arch
    assert get_space(name, **space.options).options == space.options


@pytest.mark.parametrize("name", NAMES)
def test_optuna_trials_can_choose(name: str) -> None:
    """A choice whose options change from trial to trial has a parameter for each set of options."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    space = get_space(name)
    for _ in range(20):
        trial = study.ask()
        assert space.choose(trial).as_dict() == plain_names(trial.params)
        study.tell(trial, 0.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "native", ["", "7", "[]", "{}", "{[]: 1}", "[{}, {}, {}, {}]", "[1, 2, 3, 4]", "(" * 9999]
)
def test_malformed_notation_is_refused(name: str, native: str) -> None:
    with pytest.raises(InputError):
        get_space(name).parse(native)


def test_wrong_notation_is_refused() -> None:
    hiaml, two_path, inception = (get_space(name) for name in NAMES)
    with pytest.raises(InputError, match="did you mean 'hiaml_z'"):
        hiaml.parse("['hiaml_zz', 'hiaml_z', 'hiaml_z', 'hiaml_z']")
    paths = {"path1": [["conv3x3"], ["conv5x5"]], "path1_reduce_inds": [0, 1]}
    native = {**paths, "path2": [["conv3x3"], ["conv1x1"]], "path2_reduce_inds": [0, 1]}
    with pytest.raises(InputError, match="path2_block1_convolution0"):
        two_path.parse(repr(native))
    with pytest.raises(InputError, match="path2 must be lists of operations"):
        two_path.parse(repr({**native, "path2": [["conv3x3"], []]}))
    with pytest.raises(InputError, match="option for path2_reduce1: '0'"):
        two_path.parse(repr({**native, "path2": paths["path1"], "path2_reduce_inds": [0, 0]}))
    with pytest.raises(InputError, match="not a list of 4 stages"):
        inception.parse("[{'n_blocks': 2, 'paths': []}]")
    stages = ast.literal_eval(inception.format(inception.sample(np.random.default_rng(0))))
    for key in ("C_internal", "C_out"):
        stages[1]["paths"][0][key] += 8
    with pytest.raises(InputError, match="not in the space"):
        inception.parse(repr(stages))


@pytest.mark.parametrize(
    "options", [{"channels": 2}, {"num_classes": 0}, {"input_shape": (3, 0, 32)}]
)
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="must be positive"):
        get_space("two-path", **options)
