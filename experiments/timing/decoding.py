"""Decoding against the published way, both sides in one run of a quarter of an hour.

Command: `python -m experiments.timing.decoding`.

A model of about 5 million weights decodes five metrics of texts of about 100 tokens. The plain side does what the
published library does (arXiv 2509.26476): texts are padded to 2,048 tokens, all of their states are copied for every
sample, each token is decoded from the whole sequence again, and masks are made in Python. Weights are random: they
change no time. What searches rank many candidates by is measured, too: the processes' expectation, which reads a text
as the decoder does, but writes no digits. How time and memory grow with the number of texts is measured with a small
model, which is quicker.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, Quick, Seeds, run_command
from nas.cli.console import print_json, print_table, progress_bar
from search_spaces import get_space

METRICS = ("cifar10_accuracy", "pixel3_latency_ms", "eyeriss_latency_ms", "gold_6240_latency_ms", "fpga_latency_ms")
SIZES = {"width": 256, "heads": 8, "encoder_layers": 3}
SMALL = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "latents": 4}
PADDED = 2048
SAMPLES = 64
LEARNED = 200  # texts, by the processes


def main(
    count: Annotated[int, typer.Option(min=100, help="Architectures that ours decodes.")] = 500,
    plain: Annotated[int, typer.Option(min=1, help="Architectures that the plain side decodes.")] = 2,
    seeds: Seeds = 5,
    digits: Annotated[int, typer.Option(min=3, max=6, help="Growth is measured from 10^3 to 10^this.")] = 4,
    threads: Annotated[int, typer.Option(min=1)] = os.cpu_count() or 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Architectures per second of both sides, and memory and time of many more."""
    import torch

    sizes, padded, growth = SIZES, PADDED, [10**k for k in range(3, digits + 1)]
    if quick:
        sizes, padded, growth = SMALL, 128, [100]
        count, plain, seeds, threads = 10, 1, 1, 1
    torch.set_num_threads(threads)
    grown = _growth(_model(100, 0, SMALL)[0], growth)  # first: a process's peak memory never sinks
    rows = []
    with progress_bar("decoding") as bar:
        for seed in range(seeds):
            model, texts = _model(count, seed, sizes)
            rows.append(_speeds(model, texts, plain, padded))
            bar("decoding, seeds", seed + 1, seeds)
    summary = _summary(rows) + grown
    if as_json:
        print_json(summary)
    else:
        print_table(f"Decoding of {len(METRICS)} metrics, {_weights(model) / 1e6:.1f} M weights", summary)


def _model(count: int, seed: int, sizes: dict[str, int]) -> tuple[Any, list[str]]:
    """An RLM of such sizes that was trained for one step, without processes, and texts."""
    import predictors

    space, rng = get_space("nasbench101"), np.random.default_rng(seed)
    texts = list({space.to_text(space.sample(rng)): None for _ in range(count)})
    model = predictors.create("rlm", seed=seed, base=None, steps=1, sizes=sizes)
    return model.fit(texts, {name: rng.random(len(texts)) for name in METRICS}), texts


def _speeds(model: Any, texts: list[str], plain: int, padded: int) -> dict[str, float]:
    speeds = {
        "plain, 64 samples": _speed(lambda: _plain(model, texts[:plain], padded), plain),
        "64 samples": _speed(lambda: _fresh(model, texts, SAMPLES), len(texts)),
        "point estimate, 16 samples": _speed(lambda: _fresh(model, texts, 16), len(texts)),
        "expectation": _speed(lambda: _expected(model, texts), len(texts)),
        "tokens": float(np.median([len(ids) for ids in model.reader.tokens(texts)])),
    }
    rng = np.random.default_rng(0)
    model.fit(texts[:LEARNED], {name: rng.random(len(texts[:LEARNED])) for name in METRICS})  # processes, and one step
    model.estimate(texts[:1], METRICS)
    return speeds | {"processes": _speed(lambda: _estimated(model, texts), len(texts))}


def _weights(model: Any) -> int:
    parts = (model.reader.encoder, model.decoder)
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def _speed(action: Any, count: int) -> float:
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


def _fresh(model: Any, texts: list[str], samples: int) -> None:
    """Predict texts that were never read before."""
    model.reader.forget()
    model.predict(texts, METRICS, samples=samples)


def _expected(model: Any, texts: list[str]) -> None:
    model.reader.forget()
    model.expect(texts, METRICS)


def _estimated(model: Any, texts: list[str]) -> None:
    model.reader.forget()
    model.estimate(texts, METRICS)


def _plain(model: Any, texts: list[str], padded: int) -> np.ndarray:
    """Values (n, 64, metrics) of one text after the other, the published way, all texts of so many tokens."""
    import torch

    from predictors.rlm.numbers import NUMBER_TOKENS

    number, slots = model.number, [model._slot(name) for name in METRICS]
    generator = torch.Generator().manual_seed(0)
    values = []
    for ids in model.reader.tokens(texts):
        with torch.inference_mode():
            states = _states(model.reader.encoder, ids + [0] * (padded - len(ids)), len(ids))
            copied = states.expand(SAMPLES, -1, -1).contiguous()
            sequence = torch.empty(SAMPLES, 0, dtype=torch.long)
            for slot in slots:
                sequence = torch.cat([sequence, torch.full((SAMPLES, 1), NUMBER_TOKENS + slot)], 1)
                for place in range(number.length):
                    logits = model.decoder(copied, sequence)[:, -1]
                    allowed = torch.zeros(SAMPLES, NUMBER_TOKENS, dtype=torch.bool)
                    for sample in range(SAMPLES):
                        allowed[sample, [t for t in range(NUMBER_TOKENS) if number.allowed[place, t]]] = True
                    drawn = logits.masked_fill(~allowed, -1e7).softmax(-1).multinomial(1, generator=generator)
                    sequence = torch.cat([sequence, drawn], 1)
        tokens = sequence.view(SAMPLES, len(slots), 1 + number.length)[:, :, 1:]
        values.append(number.decode(tokens.numpy()))
    return np.array(values)


def _states(encoder: Any, tokens: list[int], length: int) -> Any:
    """States (1, T, D) of a padded text, every token's."""
    import torch

    from predictors.rlm.model import _rotary

    config = encoder.config
    mask = (torch.arange(len(tokens)) < length)[None, None, None]
    rotary = _rotary(len(tokens), config.width // config.heads, torch.device("cpu"))
    x = encoder.embedding(torch.tensor([tokens]))
    for layer in encoder.layers:
        x = layer(x, rotary, mask)
    return encoder.norm(x)


def _growth(model: Any, counts: list[int]) -> list[dict[str, Any]]:
    """Time per architecture and the process's peak memory while so many different texts are predicted in a stream."""
    rows = []
    for count in counts:
        started = time.perf_counter()
        for _ in model.predict_stream(_variants(count), METRICS[:1], samples=1):
            pass
        seconds = time.perf_counter() - started
        rows += [
            {
                "what": f"small, {count:,} different texts",
                "mean": count / seconds,
                "std": 0.0,
                "unit": "architectures/s",
            },
            {"what": f"small, peak memory after {count:,}", "mean": _peak(), "std": 0.0, "unit": "MB"},
        ]
    return rows


def _variants(count: int) -> Iterator[str]:
    """As many different texts: one network with all kinds of widths."""
    space = get_space("nasbench201")
    text = space.to_text(space.sample(np.random.default_rng(0)))
    for i in range(count):
        yield text.replace("features = 10", f"features = {10 + i}")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _summary(rows: list[dict[str, float]]) -> list[dict[str, Any]]:
    def row(what: str, values: np.ndarray, unit: str) -> dict[str, Any]:
        return {
            "what": what,
            "mean": float(values.mean()),
            "std": float(values.std(ddof=min(1, len(values) - 1))),
            "unit": unit,
        }

    columns = {name: np.array([r[name] for r in rows]) for name in rows[0]}
    plain = columns["plain, 64 samples"]
    return [
        row("tokens of a text, median", columns["tokens"], "tokens"),
        row("plain decoding, 64 samples", plain, "architectures/s"),
        row("ours, 64 samples", columns["64 samples"], "architectures/s"),
        row("ours against plain", columns["64 samples"] / plain, "times"),
        row("ours, point estimate of 16 samples", columns["point estimate, 16 samples"], "architectures/s"),
        row("ours, expectation by the digits' probabilities", columns["expectation"], "architectures/s"),
        row(f"ours, expectation of processes that learned {LEARNED}", columns["processes"], "architectures/s"),
    ]


if __name__ == "__main__":
    run_command(main)
