"""Losses of a small training as JSON: for one process and for several that learn together."""

from __future__ import annotations

import json

import numpy as np
from accelerate import Accelerator

from predictors.rlm.predictor import RLM
from search_spaces import get_space

SIZES = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}


def main() -> None:
    space, rng = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8)), np.random.default_rng(0)
    texts = [space.to_text(space.sample(rng)) for _ in range(24)]
    accelerator = Accelerator(cpu=True)
    model = RLM(base=None, steps=6, sizes=SIZES, schedule={"batch": 8}, accelerator=accelerator)
    model.fit(texts, {"accuracy": rng.random(24)})
    if accelerator.is_main_process:
        print(json.dumps({"processes": accelerator.num_processes, "losses": model.losses}))


if __name__ == "__main__":
    main()
