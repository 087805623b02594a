"""Claims about the variants of the RLM for ablations."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.variants import FineTuned, FittedKernels, Independent
from nas import load_benchmark
from predictors.rlm.predictor import RLM


def test_independent_samples_have_the_joint_ones_distributions_but_no_relation() -> None:
    table = load_benchmark("digits-nasbench101")
    texts, accuracy = table.load_texts()[:60], table.values("digits_accuracy")[:50]
    values = {
        "first_accuracy": accuracy,
        "second_accuracy": accuracy,
    }  # as related as metrics can be
    joint, independent = (
        of(base="rlm-generated").fit(texts[:50], values).predict(texts[50:], list(values)).samples
        for of in (RLM, Independent)
    )
    assert np.array_equal(np.sort(joint, 1), np.sort(independent, 1))
    related, unrelated = (
        np.mean([np.corrcoef(one.T)[0, 1] for one in drawn]) for drawn in (joint, independent)
    )
    assert related > 0.5 > 0.2 > abs(unrelated)


@pytest.mark.slow
def test_fine_tuning_changes_a_copy_of_the_model() -> None:
    table = load_benchmark("digits-nasbench101")
    texts, accuracy = table.load_texts()[:12], table.values("digits_accuracy")[:12]
    before = {name: tensor.clone() for name, tensor in RLM().model.state_dict().items()}
    tuned = FineTuned(steps=1).fit(texts, {"digits_accuracy": accuracy}).model.state_dict()
    assert any(not tensor.equal(tuned[name]) for name, tensor in before.items())
    assert all(tensor.equal(before[name]) for name, tensor in RLM().model.state_dict().items())


def test_fitted_kernels_leave_all_other_weights_as_they_are() -> None:
    table = load_benchmark("digits-nasbench101")
    texts, accuracy = table.load_texts()[:12], table.values("digits_accuracy")[:12]
    fitted = (
        FittedKernels(kernel_steps=2).fit(texts, {"digits_accuracy": accuracy}).model.state_dict()
    )
    changed = {
        name for name, tensor in RLM().model.state_dict().items() if not tensor.equal(fitted[name])
    }
    assert changed == {f"reader.kernels.log_{name}" for name in ("scales", "linear", "penalty")}
