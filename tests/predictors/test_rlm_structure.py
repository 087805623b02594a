"""Claims about paths of operators, which an encoder learns to tell."""

from __future__ import annotations

import numpy as np

from predictors.rlm.structure import COMPONENTS, operator_paths, structure
from search_spaces import get_space
from search_spaces.text.program import expand
from search_spaces.text.syntax import read

SPACE = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))


def _paths(arch: str) -> dict[tuple[str, ...], int]:
    return dict(operator_paths(expand(read(SPACE.to_text(SPACE.parse(arch))))))


def test_paths_of_a_cell_are_counted_once_for_each_of_its_three_places() -> None:
    one = "|nor_conv_3x3~0|+|none~0|nor_conv_1x1~1|+|skip_connect~0|none~1|avg_pool_3x3~2|"
    paths = _paths(one)
    assert paths["Conv (3, 3)", "Conv (1, 1)", "AveragePool (3, 3)"] == 3
    without = _paths(one.replace("avg_pool_3x3", "none"))
    assert ("Conv (3, 3)", "Conv (1, 1)", "AveragePool (3, 3)") not in without


def test_zeroed_edges_are_no_paths() -> None:
    zero = "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|none~1|avg_pool_3x3~2|"
    assert not any("AveragePool (3, 3)" in path for path in _paths(zero))


def test_structure_tells_different_cells_apart_and_only_these() -> None:
    rng = np.random.default_rng(0)
    texts = [SPACE.to_text(SPACE.sample(rng)) for _ in range(60)]
    found = structure([*texts, texts[0]])
    assert found.shape == (61, COMPONENTS)
    np.testing.assert_allclose(found[0], found[-1], atol=1e-4)
    apart = np.abs(found[:60, None] - found[None, :60]).max(-1)
    same = np.array([[a == b for b in texts] for a in texts])
    assert (apart[~same] > 1e-3).mean() > 0.95
    different = found[[texts.index(text) for text in dict.fromkeys(texts)]]
    assert (np.diff(different.var(0)) < 1e-3).all(), "the largest component comes first"
