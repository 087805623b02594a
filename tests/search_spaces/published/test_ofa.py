"""Once-for-all exactly as published: parameters and MACs, the authors' lists, elastic
resolution.
"""

from __future__ import annotations

import ast
import csv
import gzip
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import InputError, get_space
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.published.ofa import RESOLUTIONS, divisible
from search_spaces.testing import check_space

NAMES = ("ofa-mbv3", "ofa-proxyless", "ofa-resnet50")


def _needs(table: str) -> pytest.MarkDecorator:
    there = os.environ.get("NAS_DATA") and Path(os.environ["NAS_DATA"], table).exists()
    reason = f"the real once-for-all table is not there: set NAS_DATA to a folder with {table}"
    return pytest.mark.skipif(not there, reason=reason)


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(Path(os.environ["NAS_DATA"], name), "rt") as file:
        return list(csv.DictReader(file))


def _native(row: dict[str, str]) -> str:
    columns = {"ks": "kernel_sizes", "e": "expand_ratios", "d": "depths"}
    lists = {key: [int(v) for v in row[column].split("_")] for key, column in columns.items()}
    return repr({**lists, "r": int(row["resolution"])})


@pytest.mark.slow
@_needs("ofa_mbv3_accuracy.csv.gz")
def test_costs_of_all_networks_equal_the_table() -> None:
    """Params and MACs of the table: at resolution 224, convolutions and linear layers,
    squeeze-and-excitation's too.
    """
    space, wrong = get_space("ofa-mbv3"), []
    rows = _rows("ofa_mbv3_accuracy.csv.gz")
    for row in rows:
        graph = space.graph(space.parse(_native(row)))
        if (graph_params(graph), graph_flops(graph)) != (int(row["params"]), int(row["macs"])):
            wrong.append(row)
    assert len(rows) == 2223
    assert not wrong


@_needs("ofa_mbv3_latency.csv.gz")
def test_lists_of_the_table_are_read_and_written() -> None:
    """Entries beyond a stage's depth, which the table fills at random, become 0; all others
    stay.
    """
    space = get_space("ofa-mbv3")
    for row in _rows("ofa_mbv3_latency.csv.gz")[:200]:
        given, written = (
            ast.literal_eval(_native(row)),
            ast.literal_eval(space.format(space.parse(_native(row)))),
        )
        used = [i % 4 < given["d"][i // 4] for i in range(20)]
        for key in ("ks", "e"):
            assert written[key] == [
                entry if use else 0 for entry, use in zip(given[key], used, strict=True)
            ]
        assert (written["d"], written["r"]) == (given["d"], given["r"])


MOBILE = {"largest": (7, 6, 4), "smallest": (3, 3, 2)}


@pytest.mark.parametrize(
    ("name", "width", "which", "params", "macs"),
    [
        ("ofa-mbv3", 1.0, "largest", 7664760, 566170656),
        ("ofa-mbv3", 1.0, "smallest", 3410792, 121278672),
        ("ofa-mbv3", 1.2, "largest", 10701632, 843101040),
        ("ofa-mbv3", 1.2, "smallest", 4602456, 193078200),
        ("ofa-proxyless", 1.3, "largest", 7942056, 1004908032),
        ("ofa-proxyless", 1.3, "smallest", 3718832, 265526256),
    ],
)
def test_mobile_networks_cost_what_the_authors_package_counts(
    name: str, width: float, which: str, params: int, macs: int
) -> None:
    """The reference is `get_active_subnet` of the authors' package ofa 0.1.0, MACs at 224."""
    kernel, expansion, depth = MOBILE[which]
    last = [1] if name == "ofa-proxyless" else []
    layers = 20 + len(last)
    space = get_space(name, resolution=224, width=width)
    arch = space.parse(
        repr({"ks": [kernel] * layers, "e": [expansion] * layers, "d": [depth] * 5 + last})
    )
    assert (space.params(arch), space.flops(arch)) == (params, macs)


@pytest.mark.parametrize(
    ("lists", "params", "macs"),
    [
        ({"d": [2] * 5, "e": [0.35] * 18, "w": [2] * 6}, 48105992, 7491643904),
        ({"d": [0] * 5, "e": [0.2] * 18, "w": [0] * 6}, 6539280, 962192128),
        # ResNet-50-D itself, with timm's parameter count
        ({"d": [2, 1, 2, 2, 1], "e": [0.25] * 18, "w": [2] * 6}, 25576264, 4328824832),
    ],
)
def test_resnets_cost_what_the_authors_package_counts(
    lists: dict[str, list[Any]], params: int, macs: int
) -> None:
    space = get_space("ofa-resnet50", resolution=224)
    arch = space.parse(repr(lists))
    assert (space.params(arch), space.flops(arch)) == (params, macs)


def test_sizes_are_the_published_ones() -> None:
    assert (
        get_space("ofa-mbv3", resolution=224).size == (9**2 + 9**3 + 9**4) ** 5
    )  # "roughly 2 × 10^19"
    assert get_space("ofa-mbv3").size == 25 * (9**2 + 9**3 + 9**4) ** 5
    assert get_space("ofa-proxyless", resolution=224).size == 9 * (9**2 + 9**3 + 9**4) ** 5
    assert get_space("ofa-resnet50", resolution=224).size == 2 * 3**6 * (9 + 27 + 81) ** 3 * (
        81 + 243 + 729
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [(NAMES[0], {"width": 0.5}), (NAMES[1], {"width": 0.5}), (NAMES[2], {})]
)
def test_every_promise_of_a_search_space_is_kept(name: str, options: dict[str, float]) -> None:
    check_space(get_space(name, resolution=36, num_classes=7, **options), count=2)


@given(st.sampled_from(NAMES), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_notation_is_read_and_written(name: str, seed: int) -> None:
    space = get_space(name)
    arch = space.sample(np.random.default_rng(seed))
    assert space.parse(space.format(arch)) == arch
    assert get_space(name, **space.options).format(arch) == space.format(arch)


@pytest.mark.parametrize("name", NAMES)
def test_resolution_is_chosen_unless_given(name: str) -> None:
    rng = np.random.default_rng(0)
    free, fixed = get_space(name), get_space(name, resolution=64)
    sizes = {free.graph(free.sample(rng)).shapes[0][2] for _ in range(30)}
    assert len(sizes) > 5
    assert sizes <= set(RESOLUTIONS)
    assert fixed.graph(fixed.sample(rng)).shapes[0] == ("N", 3, 64, 64)
    assert fixed.input_shape == (3, 64, 64)
    lists = ast.literal_eval(fixed.format(fixed.sample(rng)))
    assert lists.pop("r") == 64
    assert fixed.parse(repr(lists)) == fixed.parse(repr({**lists, "r": 64}))
    with pytest.raises(InputError, match="resolution 64, the network 128"):
        fixed.parse(repr({**lists, "r": 128}))
    with pytest.raises(InputError, match="option for r"):
        free.parse(repr({**lists, "r": 129}))


@pytest.mark.parametrize("name", NAMES)
def test_optuna_trials_can_choose(name: str) -> None:
    """Optuna refuses a choice whose options change from trial to trial."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    space = get_space(name, resolution=32)
    for _ in range(5):
        trial = study.ask()
        assert space.choose(trial).as_dict() == trial.params
        study.tell(trial, 0.0)


@given(st.floats(1, 5000))
def test_divisible_is_a_near_multiple_of_eight(channels: float) -> None:
    assert divisible(channels) % 8 == 0
    assert divisible(channels) >= max(8, 0.9 * channels)
    assert divisible(channels) < channels + 12


_LISTS = {"ks": [3] * 20, "e": [4] * 20, "d": [2] * 5, "r": 224}


@pytest.mark.parametrize(
    ("native", "message"),
    [
        ("", "not a dictionary of the lists ks, e, d and of r"),
        ("[3, 5]", "not a dictionary of the lists"),
        (repr({**_LISTS, "w": 1}), "not a dictionary of the lists"),
        (repr({**_LISTS, "ks": [3] * 19}), "'ks' must be 20 ints"),
        (repr({**_LISTS, "ks": [3.0] * 20}), "'ks' must be 20 ints"),
        (repr({**_LISTS, "ks": [4] * 20}), "option for ks0"),
        (repr({**_LISTS, "d": [5] * 5}), "option for d0"),
        (repr({**_LISTS, "r": None}), "r must be a whole number"),
        (repr({**_LISTS, "r": 224.0}), "r must be a whole number"),
        (repr({**_LISTS, "r": 100}), "option for r"),
    ],
)
def test_wrong_notation_is_refused(native: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_space("ofa-mbv3").parse(native)


@pytest.mark.parametrize("options", [{"resolution": 16}, {"num_classes": 0}, {"width": 0.0}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be"):
        get_space("ofa-mbv3", **options)
