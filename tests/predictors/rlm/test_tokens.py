"""Claims about the encoder's input: expanded lines of a text, equal for equal networks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.rlm.encoder import Batch, EncoderConfig, Flow, TextEncoder, collate
from predictors.rlm.predictor import RLM
from predictors.rlm.tokens import (
    COUNTS,
    MAX_TOKENS,
    TOKEN_NUMBERS,
    Tokens,
    bucket,
    tokenize,
    tokenize_graph,
)
from search_spaces import InputError, SearchSpace, get_space
from search_spaces.ir.text import expand, read

SPACES = {
    "nasbench201": get_space("nasbench201", channels=4, cells=1),
    "tiny-resnet": get_space("tiny-resnet"),
    "nasbench101": get_space("nasbench101"),
    "darts": get_space("darts"),
    "fbnet": get_space("fbnet"),
}
HEAD = '<ir_version: 10, opset_import: ["" : 21, "net" : 1]>\n'
FUNCTION = '<domain: "net", opset_import: ["" : 21, "net" : 1]>\n'
IMAGE = "net (float[N,3,8,8] x) => (float[N,3,8,8] y)"


def _program(main: str, *functions: str) -> str:
    body = HEAD + IMAGE + " {\n" + "".join(f"  {line}\n" for line in main.split("; ")) + "}\n"
    for function in functions:
        head, *items = function.split("; ")
        body += FUNCTION + head + " {\n" + "".join(f"  {line}\n" for line in items) + "}\n"
    return body


def _texts(name: str, count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [SPACES[name].to_text(SPACES[name].sample(rng)) for _ in range(count)]


def _encoder() -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(EncoderConfig(width=32, layers=2, structure=48)).eval()


def _states(read_lines: list[Tokens]) -> np.ndarray:
    with torch.inference_mode():
        return _encoder()(collate(read_lines)).numpy()


def _bag(found: Tokens) -> Counter[tuple[tuple[int, ...], tuple[float, ...], int]]:
    """All lines with words and numbers, without their order."""
    ends = np.append(found.starts[1:], len(found.words))
    return Counter(
        (tuple(found.words[start:end].tolist()), tuple(numbers), place)
        for start, end, numbers, place in zip(
            found.starts, ends, found.numbers.tolist(), found.position.tolist(), strict=True
        )
    )


@pytest.mark.parametrize("name", SPACES)
def test_a_text_and_its_graph_have_the_same_lines_but_for_their_order(name: str) -> None:
    for text in _texts(name, 3):
        of_text, of_graph = tokenize(text), tokenize_graph(expand(read(text)))
        assert _bag(of_text) == _bag(of_graph)
        assert of_text.edges.shape == of_graph.edges.shape
        unshared = of_text._replace(shared=np.arange(len(of_text.starts)))
        np.testing.assert_allclose(_states([unshared]), _states([of_graph]), rtol=1e-3, atol=1e-3)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(SPACES)), st.integers(0, 10_000))
def test_totals_are_the_costs_of_the_network(name: str, seed: int) -> None:
    space: SearchSpace = SPACES[name]
    arch = space.sample(np.random.default_rng(seed))
    found = tokenize(space.to_text(arch))
    np.testing.assert_allclose(
        2.0 ** found.totals[:2] - 1, [space.params(arch), space.flops(arch)], rtol=1e-5
    )
    assert found.numbers.shape == (len(found.starts), TOKEN_NUMBERS)
    params = (2.0 ** found.numbers[:, 0].astype(float) - 1).sum()
    assert params == pytest.approx(space.params(arch), rel=1e-4)
    assert ((found.position > 0) & (found.position < 1)).all()
    assert (found.edges >= 0).all()
    assert (found.edges < len(found.starts)).all()


def test_names_and_the_order_of_nodes_do_not_matter() -> None:
    one = _program("a = Relu (x); b = Sigmoid (x); y = Add (a, b)")
    other = _program("left = Sigmoid (x); right = Relu (x); y = Add (right, left)")
    assert _bag(tokenize(one)) == _bag(tokenize(other))
    np.testing.assert_allclose(
        _states([tokenize(one)]), _states([tokenize(other)]), rtol=1e-4, atol=1e-5
    )


def test_a_function_called_twice_is_its_body_twice() -> None:
    called = _program("a = net.F (x); y = net.F (a)", "F (x) => (y); a = Relu (x); y = Sigmoid (a)")
    flat = _program("a = Relu (x); b = Sigmoid (a); c = Relu (b); y = Sigmoid (c)")
    one, other = tokenize(called), tokenize(flat)
    assert _bag(one) == _bag(other)
    assert (
        sorted(one.edges.T.tolist()) == sorted(other.edges.T.tolist()) == [[0, 1], [1, 2], [2, 3]]
    )
    np.testing.assert_array_equal(one.totals, other.totals)


TWICE = "a = net.F (x); b = net.F (x); y = Add (a, b)"
BODY = "F (x) => (y); a = Relu (x); y = Sigmoid (a)"


def test_lines_of_equal_calls_are_encoded_once() -> None:
    called = tokenize(_program(TWICE, BODY))
    flat = tokenize(
        _program("a = Relu (x); b = Sigmoid (a); c = Relu (x); d = Sigmoid (c); y = Add (b, d)")
    )
    assert called.shared.tolist() == [0, 1, 0, 1, 2]
    assert flat.shared.tolist() == [0, 1, 2, 3, 4]
    assert len(Flow(collate([called])).times) == 3
    # Both calls have the same surroundings, so the state is exactly that of the network without
    # functions.
    np.testing.assert_allclose(_states([called]), _states([flat]), rtol=1e-5, atol=1e-6)
    both = _states([called, tokenize(_program("y = net.F (x)", BODY)), called])
    np.testing.assert_allclose(
        both[[0, 2]], np.repeat(_states([called]), 2, 0), rtol=1e-4, atol=1e-5
    )


def test_calls_with_other_arguments_or_input_shapes_have_lines_of_their_own() -> None:
    function = "F <c> (x) => (y); y = net.Conv <channels: int = @c, kernel = [1,1]> (x)"
    found = tokenize(
        _program("a = net.F <c = 5> (x); b = net.F <c = 5> (a); y = net.F <c = 5> (b)", function)
    )
    assert found.shared.tolist() == [0, 1, 1]  # x has 3 channels, a and b have 5
    found = tokenize(
        _program("a = net.F <c = 3> (x); b = net.F <c = 5> (x); y = net.F <c = 3> (x)", function)
    )
    assert found.shared.tolist() == [0, 1, 0]


def test_functions_inside_functions_are_encoded_once() -> None:
    outer = "G (x) => (y); a = net.F (x); b = Relu (a); y = net.F (b)"
    found = tokenize(_program("a = net.G (x); b = net.G (a); y = net.F (b)", outer, BODY))
    assert found.shared.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nasbench101", "darts"])
def test_shared_lines_change_the_states_of_networks_little(name: str) -> None:
    encoder = RLM().model.encoder
    read_lines = [tokenize(text) for text in _texts(name, 12)]
    apart = [found._replace(shared=np.arange(len(found.starts))) for found in read_lines]
    with torch.inference_mode():
        together, alone = (
            torch.cat([encoder(collate([one])) for one in some]) for some in (read_lines, apart)
        )
    different = (together - together.mean(0)) - (alone - alone.mean(0))
    assert sum(found.shared.max() + 1 for found in read_lines) < 0.8 * sum(
        len(one.starts) for one in read_lines
    )
    assert 0 < float(different.norm() / (alone - alone.mean(0)).norm()) < 0.1


def test_a_call_binds_its_parameters() -> None:
    function = "F <c> (x) => (y); y = net.Conv <channels: int = @c, kernel = [1,1]> (x)"
    found = tokenize(_program("a = net.F <c = 5> (x); y = net.F <c = 3> (a)", function))
    np.testing.assert_allclose(2.0 ** found.numbers[:, 3], [5, 3])  # channels that are made


def test_a_number_that_is_no_network_is_read_token_by_token() -> None:
    found = tokenize("depth=12, width 0.5")
    words = ["depth", "=", "#", ",", " ", "width", " ", "#"]
    assert found.words.tolist() == [bucket(word) for word in words]
    np.testing.assert_allclose(found.numbers[[2, 7], 0], np.log2([13, 1.5]))
    assert found.edges.T.tolist() == [[i, i + 1] for i in range(7)]


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_other_text_is_read_or_refused(text: str) -> None:
    if text.strip():
        found = tokenize(text)
        assert np.isfinite(found.numbers).all()
        assert len(found.words) == len(found.starts) == len(found.position)
    else:
        with pytest.raises(InputError, match="empty text"):
            tokenize(text)


LOOP = "F (x) => (y); y = net.F (x)"
DEEP = [f"F{i} (x) => (y); y = net.F{i + 1} (x)" for i in range(40)]
DOUBLING = [f"F{i} (x) => (y); a = net.F{i + 1} (x); y = net.F{i + 1} (a)" for i in range(28)]
UNREADABLE = {
    "empty": "",
    "blank": " \n",
    "recursive": _program("y = net.F (x)", LOOP),
    "deep": _program("y = net.F0 (x)", *DEEP, "F40 (x) => (y); y = Relu (x)"),
    "exponential": _program("y = net.F0 (x)", *DOUBLING, "F28 (x) => (y); y = Relu (x)"),
    "empty functions": _program("a = net.F0 (x); y = Relu (a)", *DOUBLING, "F28 (x) => (x)"),
    "inputs": _program("y = net.F (x, x)", "F (x) => (y); y = Relu (x)"),
    "outputs": _program("a, y = net.F (x)", "F (x) => (y); y = Relu (x)"),
    "parameter": _program(
        "y = net.F (x)", "F <c> (x) => (y); y = net.Conv <channels: int = @c, kernel = [1,1]> (x)"
    ),
    "syntax": HEAD + "not a network",
    "long": "7 " * MAX_TOKENS,
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_refused_in_one_line(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "predictors.rlm.tokens.MAX_TOKENS", MAX_TOKENS // 20
    )  # which is reached sooner
    with pytest.raises(InputError) as raised:
        tokenize(text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nasbench201", "tiny-resnet"])
def test_networks_that_differ_have_different_states(name: str) -> None:
    texts = list(dict.fromkeys(_texts(name, 300)))
    states = _states([tokenize(text) for text in texts])
    apart = np.abs(states[:, None] - states[None]).max(-1) + np.eye(len(texts))
    assert apart.min() > 1e-4


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), st.integers(0, 1000))
def test_no_bit_of_a_state_depends_on_the_other_texts_of_a_batch(count: int, seed: int) -> None:
    texts = [
        *_texts("nasbench201", 4, seed),
        "width 3",
        *_texts("fbnet", 2, seed),
        *_texts("nasbench101", 3, seed),
    ]
    order = np.random.default_rng(seed).permutation(len(texts))[:count]
    read = [tokenize(texts[i]) for i in order]
    encoder = _encoder()
    with torch.inference_mode():
        together = encoder(collate(read), exact=True)
        alone = torch.cat([encoder(collate([tokens])) for tokens in read])
        trained = encoder(collate(read))
    assert (together == alone).all()
    torch.testing.assert_close(together, trained, rtol=1e-3, atol=1e-3)


def test_texts_are_encoded_in_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = RLM().model
    texts = [f"width {i} depth {i % 3}" for i in range(7)]
    whole = model.states(texts)
    sizes = []
    encoded = TextEncoder.forward

    def counted(self: TextEncoder, batch: Batch, exact: bool = False) -> torch.Tensor:
        sizes.append(len(batch.totals))
        return encoded(self, batch, exact)

    monkeypatch.setattr(TextEncoder, "forward", counted)
    monkeypatch.setattr("predictors.rlm.model.BATCH_TEXTS", 3)
    np.testing.assert_array_equal(model.states(texts), whole)
    monkeypatch.setattr("predictors.rlm.model.BATCH_TOKENS", 8)  # two texts have seven tokens each
    np.testing.assert_array_equal(model.states(texts), whole)
    assert sizes == [3, 3, 1, 2, 2, 2, 1]


def _kinds(found: Tokens) -> frozenset[tuple[object, int]]:
    """Counts of each kind of line."""
    kinds: Counter[object] = Counter()
    for (words, numbers, _), count in _bag(found).items():
        kinds[words, numbers[:-2]] += count
    return frozenset(kinds.items())


@pytest.mark.parametrize("name", SPACES)
def test_counts_are_those_of_the_graph_and_differ_between_networks_of_other_operators(
    name: str,
) -> None:
    rng = np.random.default_rng(1)
    graphs = [SPACES[name].graph(SPACES[name].sample(rng)) for _ in range(5)]
    texts = [SPACES[name].to_text(SPACES[name].sample(np.random.default_rng(1))), *_texts(name, 4)]
    np.testing.assert_array_equal(tokenize(texts[0]).counts, tokenize_graph(graphs[0]).counts)
    found = {tokenize(text).counts.tobytes() for text in texts}
    assert len(found) == len({_kinds(tokenize(text)) for text in texts}) > 1


def test_a_cost_per_kind_of_line_is_linear_in_the_counts() -> None:
    read_lines = [tokenize(text) for text in _texts("nasbench201", 200)]
    price: dict[object, float] = {}
    rng = np.random.default_rng(0)
    costs = np.zeros(len(read_lines))
    for row, found in enumerate(read_lines):
        for kind, count in _kinds(found):
            costs[row] += count * price.setdefault(kind, float(rng.lognormal()))
    counts = np.array([np.append(found.counts, 1.0) for found in read_lines])
    weights = np.linalg.lstsq(counts[:100], costs[:100], rcond=1e-6)[0]
    assert counts.shape[1] == COUNTS + 1
    np.testing.assert_allclose(counts[100:] @ weights, costs[100:], rtol=1e-3)
