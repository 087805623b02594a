"""Claims about the Gaussian processes and about ensembles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from predictors import create, load
from search_spaces import InputError, get_space

SPACE = get_space("nasbench201", channels=4, cells=1)
ARCHITECTURES = [SPACE.sample(np.random.default_rng(i)) for i in range(120)]
VALUES = np.log([1.0 + SPACE.flops(a) for a in ARCHITECTURES])


def test_one_on_choices_reads_architectures_and_is_kept(tmp_path: Path) -> None:
    model = create("gp-choices").fit(ARCHITECTURES[:60], {"x_ms": VALUES[:60]})
    predicted = model.predict(ARCHITECTURES[60:], ["x_ms"], samples=8)
    assert kendalltau(predicted["x_ms"], VALUES[60:]).statistic > 0.6
    model.save(tmp_path)
    np.testing.assert_allclose(
        load(tmp_path).predict(ARCHITECTURES[60:], ["x_ms"], samples=8).samples, predicted.samples
    )


def test_each_gets_what_it_reads() -> None:
    with pytest.raises(InputError, match="gp-choices reads architectures"):
        create("gp-choices").fit([SPACE.to_text(ARCHITECTURES[0])], {"x_ms": [1.0]})
    with pytest.raises(InputError, match="reads text"):
        create("gp").fit(ARCHITECTURES[:1], {"x_ms": [1.0]})


def test_an_ensemble_has_equally_many_samples_of_each_member() -> None:
    texts = [SPACE.to_text(a) for a in ARCHITECTURES]
    metrics = {"x_ms": VALUES[:40]}
    both = create("ridge+forest", seed=3).fit(texts[:40], metrics).predict(texts[40:50], ["x_ms"], samples=8).samples
    for k, name in enumerate(("ridge", "forest")):
        alone = create(name, seed=3).fit(texts[:40], metrics).predict(texts[40:50], ["x_ms"], samples=4).samples
        np.testing.assert_allclose(both[:, 4 * k : 4 * k + 4], alone)


@pytest.mark.parametrize(
    ("name", "reason"), [("rlm+rlm", "once"), ("rlm+gp-choices", "cannot be joined"), ("rlm+gb", "did you mean")]
)
def test_ensembles_that_make_no_sense_are_refused(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        create(name)
