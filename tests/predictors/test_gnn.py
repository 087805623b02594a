"""Claims about the graph network."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from predictors import create, load
from predictors.gnn import GNN
from predictors.gnn.graph import TextGraph, Vocabulary, collate, text_graph
from predictors.gnn.model import Config, Network
from predictors.gnn.predictor import held_out_folds
from search_spaces import InputError, get_space
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.text import expand, read
from search_spaces.ir.text.program import calls, sites

SPACES = [get_space("tiny-resnet"), get_space("nasbench201", channels=4, cells=2)]


def some_texts(n: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [space.to_text(space.sample(rng)) for space in SPACES for _ in range(n)]


def embeddings(graphs: list[TextGraph]) -> torch.Tensor:
    """Embeddings (K, T, D) by one random network."""
    torch.manual_seed(0)
    vocabulary = Vocabulary.of(graphs)
    batch = collate(graphs)
    with torch.no_grad():
        return Network(Config(len(vocabulary), metrics=1)).embed(
            batch, vocabulary.features(batch.kinds)
        )


@pytest.mark.parametrize("text", some_texts(3))
def test_costs_and_calls_are_those_of_the_expanded_network(text: str) -> None:
    program = read(text)
    flat = expand(program)
    costs = [site.cost for site in sites(program)]
    assert sum(cost.params for cost in costs) == graph_params(flat)
    assert sum(cost.flops for cost in costs) == graph_flops(flat)
    for name, runs in calls(program).items():
        places = {node.scope[: i + 1] for node in flat.nodes for i in range(len(node.scope))}
        assert runs == sum(place[-1].rsplit("_")[0] == name for place in places)


def test_a_function_that_calls_itself_is_refused() -> None:
    text = some_texts(1)[-1]
    head = re.search(r"^(F\d+) \(x\) => \(y\) \{\n", text, re.MULTILINE)
    assert head is not None
    with pytest.raises(InputError, match="must not call itself"):
        text_graph(f"{text[: head.end()]}  z = net.{head[1]} (x)\n{text[head.end() :]}")


def test_every_distinct_block_is_encoded_once() -> None:
    graphs = [text_graph(text) for text in some_texts(4)]
    once, twice = collate(graphs), collate(graphs + graphs)
    assert [level.blocks for level in once.levels] == [level.blocks for level in twice.levels]
    blocks = {
        block for graph in graphs for block in (graph.main, *(part for part, _ in graph.parts))
    }
    assert sum(level.blocks for level in once.levels) == len(blocks)
    space = SPACES[1]
    two = [text_graph(space.to_text(space.sample(np.random.default_rng(seed)))) for seed in (0, 1)]
    shared = {part for part, _ in two[0].parts} & {part for part, _ in two[1].parts}
    assert len(shared) == 1, "the reduction block is the same in all networks of the space"


def test_an_embedding_does_not_depend_on_the_other_texts_of_the_batch() -> None:
    graphs = [text_graph(text) for text in some_texts(3)]
    together = embeddings(graphs)
    backwards = embeddings(graphs[::-1]).flip(1)
    assert torch.allclose(together, backwards, atol=1e-4)


def test_different_networks_get_different_embeddings() -> None:
    space = get_space("nasbench201", channels=4, cells=1)
    rng = np.random.default_rng(0)
    texts = list(dict.fromkeys(space.to_text(space.sample(rng)) for _ in range(60)))
    embedded = embeddings([text_graph(text) for text in texts])[0]
    distances = torch.cdist(embedded, embedded) + 1e3 * torch.eye(len(texts))
    assert distances.min() > 1e-4


@pytest.mark.parametrize("steps", [2, 10])
def test_a_few_training_steps_are_supported(steps: int) -> None:
    losses: list[float] = []

    def note(step: str, done: int, total: int) -> None:
        losses.append(float(step.removeprefix("loss ")))

    gnn = GNN(base=None, steps=steps, progress=note)
    gnn.fit(some_texts(2), {"metric": np.arange(4.0)})
    assert len(losses) == steps
    assert np.isfinite(losses).all()


def test_networks_with_unseen_operators_are_distinguished() -> None:
    texts = some_texts(4)[:4]
    predictor = GNN(base=None, steps=5).fit(texts, {"metric": np.arange(4.0)})
    found = predictor.estimate([text.replace("Relu", "Sigmoid") for text in texts], ["metric"])
    assert np.isfinite(found).all()
    assert np.ptp(found) > 0


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(1, 6))
def test_each_member_learns_from_all_but_a_small_part(n: int, members: int) -> None:
    hidden = held_out_folds(n, members, folds=8, rng=np.random.default_rng(0))
    assert hidden.shape == (members, n)
    assert (hidden.sum(axis=1) <= -(-n // 8)).all()
    assert hidden.any() == (n >= 16)


def test_a_given_metric_helps_to_predict_another() -> None:
    space = SPACES[1]
    rng = np.random.default_rng(1)
    texts = [space.to_text(space.sample(rng)) for _ in range(160)]
    first = rng.normal(size=160)  # nothing in the text tells it
    second = 5 * first + 0.1 * rng.normal(size=160)
    predictor = GNN(base=None, width=16, layers=1, members=4, steps=50).fit(
        texts[:100], {"first": first[:100], "second": second[:100]}
    )
    told = predictor.predict(texts[100:], ["second"], given={"first": first[100:]})
    assert kendalltau(told["second"], second[100:])[0] > 0.6
    alone = predictor.predict(texts[100:], ["second"])
    assert kendalltau(alone["second"], second[100:])[0] < 0.4


SMALL: dict[str, Any] = {"width": 16, "layers": 1, "members": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a network trained on parameters and FLOPs."""
    texts = some_texts(40, seed=3)
    costs = {"params": graph_params, "flops": graph_flops}
    graphs = [expand(read(text)) for text in texts]
    metrics = {
        name: np.array([float(count(graph)) for graph in graphs]) for name, count in costs.items()
    }
    folder = tmp_path_factory.mktemp("base")
    GNN(base=None, **SMALL, steps=60).fit(texts, metrics).save(folder)
    return str(folder)


def test_a_base_improves_predictions_from_few_labels(base: str) -> None:
    space = SPACES[1]
    archs = [space.sample(np.random.default_rng(seed)) for seed in range(150)]
    texts = [space.to_text(arch) for arch in archs]
    values = np.log([space.flops(arch) for arch in archs]) + 0.1 * np.random.default_rng(0).normal(
        size=150
    )
    taus = {}
    for start in (None, base):
        predictor = GNN(base=start, **SMALL, steps=20).fit(texts[:12], {"metric": values[:12]})
        taus[start] = kendalltau(predictor.predict(texts[12:], ["metric"])["metric"], values[12:])[
            0
        ]
    assert taus[base] > taus[None] + 0.1


def test_a_network_starts_with_the_weights_and_words_of_its_base(base: str) -> None:
    texts = [text.replace("Relu", "Sigmoid") for text in some_texts(4)]
    graphs = [text_graph(text) for text in texts]
    before = load(base)
    assert isinstance(before, GNN)
    words = before._vocabulary.words
    vocabulary = Vocabulary.of(graphs, words)
    assert vocabulary.words[: len(words)] == words
    assert "Sigmoid" in vocabulary.words[len(words) :]
    sizes = before._network.config
    network = Network(Config(len(vocabulary), 1, sizes.width, sizes.layers, sizes.members))
    network.copy_pretrained(before._network)
    known = collate([text_graph(text) for text in some_texts(4)])
    with torch.no_grad():
        own = network.embed(known, vocabulary.features(known.kinds))
        of_base = before._network.embed(known, before._vocabulary.features(known.kinds))
    assert torch.allclose(own, of_base, atol=1e-5)
    predictor = GNN(base=base, **SMALL, steps=2).fit(texts, {"metric": np.arange(8.0)})
    assert np.isfinite(predictor.predict(texts, ["metric"]).mean).all()


def test_a_checkpoint_does_not_need_its_base(base: str, tmp_path: Path) -> None:
    copied = shutil.copytree(base, tmp_path / "base")
    texts = some_texts(8)
    values = {
        "first": np.arange(16.0),
        "second": np.where(np.arange(16) % 2, np.nan, 1.0 + np.arange(16)),
    }
    predictor = GNN(base=str(copied), **SMALL, steps=2).fit(texts, values)
    known = {"second": values["second"]}
    before = predictor.predict(texts, ["first"], given=known, samples=5).samples
    predictor.save(tmp_path / "tuned")
    shutil.rmtree(copied)
    after = load(tmp_path / "tuned").predict(texts, ["first"], given=known, samples=5).samples
    assert np.array_equal(before, after)


def test_with_a_base_a_given_metric_adds_information_to_the_text(base: str) -> None:
    rng = np.random.default_rng(1)
    texts = [SPACES[1].to_text(SPACES[1].sample(rng)) for _ in range(80)]
    first = rng.normal(size=80)  # nothing in the text tells it
    values = {"first": first[:30], "second": 5 * first[:30]}
    predictor = GNN(base=base, **SMALL, steps=20).fit(texts[:30], values)
    told = predictor.predict(texts[30:], ["second"], given={"first": first[30:]})
    assert kendalltau(told["second"], 5 * first[30:])[0] > 0.7


def test_bad_options_are_refused(base: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="members"):
        GNN(members=0)
    texts, values = some_texts(1), {"metric": np.arange(2.0)}
    with pytest.raises(InputError, match=r"width is 16 in .*, not 8"):
        GNN(base=base, width=8, layers=1, members=2).fit(texts, values)
    create("ridge").fit(texts, values).save(tmp_path)
    with pytest.raises(InputError, match="holds a ridge predictor, not a gnn"):
        GNN(base=str(tmp_path)).fit(texts, values)


def test_the_prediction_of_an_unknown_given_metric_is_refused() -> None:
    predictor = GNN(base=None, steps=2).fit(some_texts(2), {"metric": np.arange(4.0)})
    with pytest.raises(InputError, match="did you mean 'metric'"):
        predictor.predict(some_texts(2), ["metric"], given={"metrik": np.zeros(4)})


@pytest.fixture(scope="module")
def nasbench201(nas_data: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts, validation and test accuracies of 600 architectures of the real table."""
    from nas.benchmarks import load_benchmark

    benchmark = load_benchmark("nasbench201")
    chosen = np.random.default_rng(0).permutation(len(benchmark))[:600]
    texts = [benchmark.space.to_text(benchmark.architectures[i]) for i in chosen]
    columns = [
        benchmark.values(f"cifar10_{part}_accuracy")[chosen] for part in ("validation", "test")
    ]
    return texts, columns[0], columns[1]


def test_it_ranks_real_networks_from_78_trainings(
    nasbench201: tuple[list[str], np.ndarray, np.ndarray],
) -> None:
    texts, validation, test = nasbench201
    predictor = GNN().fit(texts[:78], {"accuracy": validation[:78]})
    predictions = predictor.predict(texts[78:], ["accuracy"])
    assert kendalltau(predictions["accuracy"], test[78:])[0] > 0.72
    low, high = np.quantile(predictions.samples[:, :, 0], [0.1, 0.9], axis=1)
    assert 0.6 < np.mean((low < validation[78:]) & (validation[78:] < high)) < 0.97, (
        "80 % intervals hold about 80 %"
    )
