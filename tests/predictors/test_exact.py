"""Claims about params and FLOPs: they are counted in the network, whatever a predictor has learned
of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from predictors import create, load
from search_spaces import get_space, to_text

SPACE = get_space("tiny-resnet")
ARCHITECTURES = list(
    dict.fromkeys(SPACE.sample(np.random.default_rng(seed)) for seed in range(60))
)[:40]
TEXTS = [SPACE.to_text(a) for a in ARCHITECTURES]
COUNTED = np.array([[SPACE.params(a), SPACE.flops(a)] for a in ARCHITECTURES], float)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("rlm", {}), ("gnn", {"steps": 5}), ("gp", {}), ("ridge", {}), ("rlm+gp", {})],
)
def test_costs_are_counted_and_not_learned(kind: str, options: dict[str, int]) -> None:
    learned = {"params": COUNTED[:6, 0], "flops": COUNTED[:6, 1], "top1": np.arange(6.0)}
    model = create(kind, **options).fit(TEXTS[:6], learned)
    found = model.predict(TEXTS[6:], ["params", "top1", "flops"], samples=8)
    assert found.mean[:, [0, 2]].tolist() == COUNTED[6:].tolist()
    assert not found.std[:, [0, 2]].any()
    assert found.std[:, 1].any()
    assert model.estimate(TEXTS[6:], ["flops"])[:, 0].tolist() == COUNTED[6:, 1].tolist()


def test_costs_that_are_given_of_some_networks_are_counted_in_the_others() -> None:
    model = create("ridge").fit(TEXTS[:6], {"params": COUNTED[:6, 0], "top1": np.arange(6.0)})
    found = model.predict(TEXTS[6:9], ["params"], given={"params": [3.0, np.nan, np.nan]})["params"]
    assert found.tolist() == [3.0, *COUNTED[7:9, 0]]


def test_a_shipped_checkpoint_counts_in_models_and_texts() -> None:
    model = SPACE.to_onnx(ARCHITECTURES[0])
    assert (
        load("gnn-label-free")
        .predict([model, TEXTS[1]], ["params", "flops"], samples=8)
        .median.tolist()
        == COUNTED[:2].tolist()
    )
    assert to_text(model) == TEXTS[0]


def test_given_costs_are_returned_and_costs_of_other_texts_are_predicted() -> None:
    model = create("rlm").fit([*TEXTS[:6], "a b c"], {"params": np.arange(7.0)})
    assert model.predict(TEXTS[:1], ["params"], given={"params": [3.0]}).mean.tolist() == [[3.0]]
    assert 0 <= model.predict(["a b d"], ["params"]).mean[0, 0] <= 10
