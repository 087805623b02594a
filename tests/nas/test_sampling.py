"""Claims about samples given exact costs: latencies depend on them, accuracies do not."""

from __future__ import annotations

import numpy as np

from nas.sampling import draw
from predictors import create
from predictors.features import exact_costs
from search_spaces import get_space


def test_latencies_are_conditioned_on_costs_and_accuracies_are_not() -> None:
    space, rng = get_space("tiny-resnet"), np.random.default_rng(0)
    texts = list(dict.fromkeys(space.to_text(space.sample(rng)) for _ in range(100)))[:30]
    flops = np.array(exact_costs(texts, ["flops"])["flops"])
    learned = {"top1_accuracy": np.log(flops[:20]), "x_ms": 1e-6 * flops[:20]}
    names, asked = ("top1_accuracy", "x_ms"), texts[20:]
    model = create("rlm").fit(texts[:20], {**learned, "flops": flops[:20]})
    found = draw(model, asked, names, None, 16)
    given = {"flops": flops[20:]}
    np.testing.assert_array_equal(
        found["x_ms"], model.predict(asked, ["x_ms"], given, samples=16).samples[:, :, 0]
    )
    plain = model.predict(asked, names, samples=16).samples
    np.testing.assert_array_equal(found["top1_accuracy"], plain[:, :, 0])
    assert not np.array_equal(found["x_ms"], plain[:, :, 1])
    without = create("rlm").fit(texts[:20], learned)
    jointly = draw(without, asked, names, None, 16)
    np.testing.assert_array_equal(np.stack([jointly[name] for name in names], 2), plain)
