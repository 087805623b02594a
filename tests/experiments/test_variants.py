"""Claims about the variants of the RLM for ablations."""

from __future__ import annotations

import numpy as np

from experiments.variants import FineTuned, Independent
from nas import load_benchmark
from predictors.rlm.predictor import RLM

METRICS = ["digits_accuracy", "cpu_latency_ms"]


def test_independent_samples_have_the_joint_ones_distributions_but_no_relation() -> None:
    table = load_benchmark("digits-nasbench101")
    texts = table.load_texts()[:30]
    values = {metric: table.values(metric)[:20] for metric in METRICS}
    joint, independent = (
        of(base="rlm-generated").fit(texts[:20], values).predict(texts[20:], METRICS) for of in (RLM, Independent)
    )
    assert np.array_equal(np.sort(joint.samples, 1), np.sort(independent.samples, 1))
    assert not np.array_equal(joint.samples, independent.samples)


def test_fine_tuning_changes_a_copy_of_the_model() -> None:
    table = load_benchmark("digits-nasbench101")
    texts, accuracy = table.load_texts()[:12], table.values(METRICS[0])[:12]
    before = {name: tensor.clone() for name, tensor in RLM().model.state_dict().items()}
    tuned = FineTuned(steps=1).fit(texts, {METRICS[0]: accuracy}).model.state_dict()
    assert any(not tensor.equal(tuned[name]) for name, tensor in before.items())
    assert all(tensor.equal(before[name]) for name, tensor in RLM().model.state_dict().items())
