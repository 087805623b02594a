"""Claims about what the RLM reads of a text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from predictors.rlm.encoder import EncoderConfig, TextEncoder, collate
from predictors.rlm.lines import Lines, graph_lines, lines
from search_spaces import InputError, get_space

SPACES = ["tiny-resnet", "nasbench201", "nasbench101", "darts", "fbnet", "ofa-mbv3", "inception"]


def _encoder() -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(EncoderConfig(width=32, layers=2, state=32)).eval()


def _state(read: Lines) -> np.ndarray:
    with torch.inference_mode():
        return _encoder()(collate([read]))[0].numpy()


@pytest.mark.parametrize("name", SPACES)
def test_a_texts_totals_are_the_networks_exact_costs(name: str) -> None:
    space = get_space(name)
    architecture = space.sample(np.random.default_rng(3))
    totals = lines(space.to_text(architecture)).totals
    assert 2.0 ** totals[0] - 1 == pytest.approx(space.params(architecture), rel=1e-4)
    assert 2.0 ** totals[1] - 1 == pytest.approx(space.flops(architecture), rel=1e-4)


@pytest.mark.parametrize("name", SPACES)
def test_a_text_and_its_graph_are_read_alike(name: str) -> None:
    space = get_space(name)
    architecture = space.sample(np.random.default_rng(4))
    of_text, of_graph = lines(space.to_text(architecture)), graph_lines(space.graph(architecture))
    assert sorted(of_text.words.tolist()) == sorted(of_graph.words.tolist())
    np.testing.assert_allclose(_state(of_text), _state(of_graph), atol=1e-4)


def test_different_networks_have_different_states() -> None:
    space = get_space("nasbench201", channels=4, cells=1)
    rng = np.random.default_rng(0)
    texts = list(dict.fromkeys(space.to_text(space.sample(rng)) for _ in range(150)))
    states = np.array([_state(lines(text)) for text in texts])
    distances = np.linalg.norm(states[:, None] - states, axis=-1) + 1e3 * np.eye(len(texts))
    assert distances.min() > 1e-4


def test_a_call_is_read_as_the_lines_of_its_function() -> None:
    space = get_space("nasbench201", channels=4, cells=3)
    architecture = space.parse("|nor_conv_3x3~0|+|none~0|nor_conv_1x1~1|+|skip_connect~0|none~1|none~2|")
    text = space.to_text(architecture)
    assert text.count("\n") < len(lines(text).starts) == len(space.graph(architecture).nodes)


def test_any_other_text_is_read_token_by_token() -> None:
    read = lines("for i in range(10): total += i * 2.5")
    assert len(read.starts) == len(read.words) > 10
    assert read.edges.shape == (2, len(read.starts) - 1)
    assert np.log2(1 + 2.5) == pytest.approx(read.numbers[:, 0].max(), abs=2)


@pytest.mark.parametrize("text", ["", "  \n", "<ir_version: 10>\nnot a network"])
def test_what_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        lines(text)


def test_a_function_that_calls_itself_is_refused() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "net" : 1]>
net (float[N,3,8,8] x) => (float[N,3,8,8] y) {
  y = net.F1 (x)
}
<domain: "net", opset_import: ["" : 21, "net" : 1]>
F1 (x) => (y) {
  y = net.F1 (x)
}
"""
    with pytest.raises(InputError, match="must not call itself"):
        lines(text)
