"""`rlm-zoo`, an RLM with real networks as examples: `python -m experiments.zoo_checkpoint`, with
`$NAS_DATA/zoo`.

The checkpoint contains numbers of these tables, and its card contains their notices. No weights are
trained. Intervals are calibrated on families that are left out in turn.

    nas predict timm:resnet50 my_model.py:build --checkpoint rlm-zoo --metrics
    imagenet_top1_accuracy,rtx4090_ms nas rank 'timm:resnet*' my_model.py:build --checkpoint rlm-zoo
    \
        --objectives imagenet_top1_accuracy,rtx4090_ms --constraint "rtx4090_ms <= 1"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.runner import Quick, run_command
from experiments.zoo_tables import Zoo, aihub_zoo, timm_zoo
from search_spaces.common.files import replacing

QUICK_EVERY = 8
CARD = """# rlm-zoo

`{base}` with {networks} real networks as its examples: it predicts ImageNet top-1 and latencies of networks from their
text. Made by `python -m experiments.zoo_checkpoint`; **for use, not for comparisons**: it knows the tables.

- **Trained on** nothing more than `{base}`, whose card describes it.
- **Examples**: networks of timm, with the top-1 of weights trained on ImageNet-1k alone (`imagenet_top1_accuracy`),
  with a teacher (`…_distilled_…`) or with more data (`…_extra_data_…`), and milliseconds per image on six devices
  (GPUs: at the largest batch that fits; CPUs: one image at a time); and networks of Qualcomm AI Hub, with latencies on
  phones and chips by device, precision and runtime (`samsung_galaxy_s24_w8a8_tflite_ms`).
- **Scale**: latencies are learned as logarithms.
- **Noise**: the training recipe alone moves a network's top-1 by up to 5.7 points.
- **Exact costs** (`params`, `flops`) are among its metrics: `nas predict` and `nas rank` give them to each latency.
- **Intervals** are widened until 90 % of them contain the true value, for families of networks that were left out
  (`calibrate`).
- **Metrics**: {metrics}.
- **Licence**: timm's tables are Apache-2.0 (Copyright 2019 Ross Wightman), AI Hub's are BSD-3-Clause (Copyright 2025
  Qualcomm Technologies, Inc.). The numbers are in this checkpoint: pass it on with these notices.
"""


def joined(zoos: list[Zoo]) -> Zoo:
    """Join tables: one row per text.

    A row has the first value of each metric, and the first table's name and family.
    """
    place: dict[str, int] = {}
    sources, families = [], []
    for zoo in zoos:
        for source, text, family in zip(zoo.sources, zoo.texts, zoo.families, strict=True):
            if text not in place:
                place[text] = len(place)
                sources.append(source)
                families.append(str(family))
    values: dict[str, np.ndarray] = {}
    for zoo in zoos:
        for name, column in zoo.values.items():
            joint = values.setdefault(name, np.full(len(place), np.nan))
            for text, value in zip(zoo.texts, column, strict=True):
                at = place[text]
                joint[at] = value if np.isnan(joint[at]) else joint[at]
    return Zoo(sources, list(place), np.array(families), values)


def main(
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint.")] = Path("results/rlm-zoo"),
    base: Annotated[
        str, typer.Option(help="Checkpoint of the RLM that gets the examples.")
    ] = "rlm-base",
    quick: Quick = False,
) -> None:
    """Read the networks, fit, calibrate and save the RLM."""
    import predictors
    from predictors.features import exact_costs
    from predictors.metrics import EXACT
    from predictors.rlm.predictor import RLM

    zoos = [timm_zoo(QUICK_EVERY if quick else 1, True), *([] if quick else [aihub_zoo()])]
    zoo = joined(zoos)
    values = zoo.values | {
        name: np.array(costs) for name, costs in exact_costs(zoo.texts, EXACT).items()
    }
    model = predictors.create("rlm", base=base)
    assert isinstance(model, RLM)
    model.fit(zoo.texts, values).calibrate(zoo.texts, list(zoo.families))
    model.save(out)
    with replacing(out / "README.md") as path:
        path.write_text(
            CARD.format(
                base=base,
                networks=len(zoo.texts),
                metrics=", ".join(map("`{}`".format, zoo.values)),
            )
        )
    print(out)


if __name__ == "__main__":
    run_command(main)
