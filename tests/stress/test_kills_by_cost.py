"""Claims about killed searches by cost: the check finds trainings that differ from uninterrupted
ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stress import kills_by_cost
from tests.stress.kills_by_cost import judged, work


@pytest.mark.slow
def test_a_training_with_other_weights_or_another_curve_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills_by_cost, "SLOW", 0.0)
    found, original = work(tmp_path, 40), kills_by_cost.evaluate
    good = judged(found)
    assert good["doubled"] == good["lost"] == good["failed"] == 0
    assert good["equal bit for bit"] == good["trained to the end"] > 0

    def with_other_weights(
        model: Any, architecture: Any, report: Any, checkpoint: Path | None = None
    ) -> Any:
        values = original(model, architecture, report, checkpoint)
        return {**values, "digest": values["digest"] + 1}

    def with_another_curve(
        model: Any, architecture: Any, report: Any, checkpoint: Path | None = None
    ) -> Any:
        return original(
            model, architecture, lambda epoch, values: report(epoch + 1, values), checkpoint
        )

    for wrong in (with_other_weights, with_another_curve):
        monkeypatch.setattr(kills_by_cost, "evaluate", wrong)
        assert judged(found)["equal bit for bit"] == 0
