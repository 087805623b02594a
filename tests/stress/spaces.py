"""Check the contract of all search spaces on random architectures.

Run `python -m tests.stress.spaces`.

Each architecture's ONNX model must pass ONNX's checker, run in ONNX Runtime and have the
architecture's text. The text must parse and give a model with the same text, parameters and FLOPs.
`lines` counts what the RLM reads: the lines of the text after all function calls are expanded.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from experiments.runner import AsJson, Jobs, Quick, run_command
from nas.benchmarks.text_cache import text_version
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from search_spaces import Architecture, SearchSpace, from_text, get_space, list_spaces
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.onnx import from_model
from search_spaces.ir.text import compact, write

if TYPE_CHECKING:
    import onnx

NDS = 14_000
# Tokens of one network's ONNX dump in "Regression Language Models for Code" (arXiv 2509.26476).
PUBLISHED_TOKENS = {
    **dict.fromkeys(["nasnet", "amoeba", "pnas", "enas", "darts"], NDS),
    "nasbench101": 4_100,
    "nasbench201": 3_400,
    "fbnet": 3_500,
    "ofa-mbv3": 6_300,
    "ofa-resnet50": 2_500,
    "two-path": 1_800,
    "hiaml": 2_400,
    "inception": 23_000,
}


class Checked(NamedTuple):
    """An architecture's text, the processor seconds to write it, and its failure (empty if there is
    none).
    """

    text: str
    seconds: float
    failure: str


@cache
def _space(name: str) -> SearchSpace:
    return get_space(name)


def _architecture(name: str, seed: int, index: int, purpose: int = 0) -> Architecture:
    """Architecture `index` of the random sequence of a seed and purpose. It does not depend on the
    others.
    """
    return _space(name).sample(np.random.default_rng([seed, purpose, index]))


def check(space: SearchSpace, arch: Architecture, text: str) -> None:
    """Check an architecture and its text. Raises AssertionError that names the broken promise."""
    import onnx

    model = space.to_onnx(arch)
    onnx.checker.check_model(model, full_check=True)
    onnx.checker.check_model(onnx.parser.parse_model(text))
    _check_run(model, space)
    costs = (space.params(arch), space.flops(arch))
    again = from_model(model)
    del model  # one set of weights in memory at a time
    assert write(compact(again)) == text, "the model's text is not the architecture's"
    assert (graph_params(again), graph_flops(again)) == costs, (
        "params or FLOPs of the model are not the architecture's"
    )
    rebuilt = from_model(from_text(text))
    assert write(compact(rebuilt)) == text, "text → model → text is not a fixed point"
    assert (graph_params(rebuilt), graph_flops(rebuilt)) == costs, (
        "params or FLOPs change on the way text → model"
    )


def _check_run(model: onnx.ModelProto, space: SearchSpace) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    given = session.get_inputs()[0]
    x = np.random.default_rng(0).standard_normal((1, *given.shape[1:])).astype(np.float32)
    logits = session.run(None, {given.name: x})[0]
    assert logits.shape == (1, space.num_classes), (
        f"ONNX Runtime gives an output of shape {logits.shape}"
    )
    assert np.isfinite(logits).all(), "ONNX Runtime gives NaN or infinite logits"


def _checked(task: tuple[str, int, int]) -> Checked:
    name, seed, index = task
    space, text, seconds = _space(name), "", 0.0
    what = f"{name}, architecture {index} of seed {seed}"
    try:
        arch = _architecture(name, seed, index)
        what = f"{what}, {space.format(arch)}"
        started = time.process_time()
        text = space.to_text(arch)
        seconds = time.process_time() - started
        check(space, arch, text)
    except (
        Exception
    ) as error:  # any error is a failure of this architecture; the others are still checked
        return Checked(text, seconds, " ".join(f"{what}: {type(error).__name__}: {error}".split()))
    return Checked(text, seconds, "")


def checked(name: str, count: int, seed: int, jobs: int = 1) -> Iterator[Checked]:
    """Check the space's random architectures 0..count-1 with `jobs` processes. Results come in
    order.
    """
    tasks = ((name, seed, index) for index in range(count))
    if jobs == 1:
        yield from map(_checked, tasks)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_checked, tasks, chunksize=8)


def summary(name: str, results: Iterable[Checked]) -> tuple[dict[str, Any], str]:
    """The space's row of the table, and its first failure (empty if there is none)."""
    from predictors.rlm.tokens import tokenize

    counts, characters, seconds, failed, first = [], [], [], 0, ""
    for result in results:
        counts.append(len(tokenize(result.text).starts))
        characters.append(len(result.text))
        seconds.append(result.seconds)
        failed += bool(result.failure)
        first = first or result.failure
    row = {
        "space": name,
        "failed": failed,
        "lines": int(np.median(counts)),
        "95 %": int(np.quantile(counts, 0.95)),
        "max": max(counts),
        "published tokens": PUBLISHED_TOKENS.get(name, "-"),
        "chars": int(np.median(characters)),
        "texts/s": int(len(seconds) / max(sum(seconds), 1e-9)),
    }
    return row, first


def _row_path(out: Path, name: str) -> Path:
    return out / f"{name.replace('/', '_')}.json"


def _kept(out: Path | None, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The stored row and failure of an earlier run with these settings; None if there is none."""
    path = _row_path(out, settings["space"]) if out else None
    if path is None or not path.exists():
        return None
    try:
        kept = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path}: damaged; delete it to check the space again") from error
    if kept.get("settings") != settings:
        raise InputError(f"{path}: made with other settings or code; give another --out folder")
    return kept


def _watched(
    name: str, results: Iterator[Checked], count: int, progress: Progress
) -> Iterator[Checked]:
    for done, result in enumerate(results, start=1):
        progress(name, done, count)
        yield result


def main(
    count: Annotated[int, typer.Option(min=1, help="Random architectures of each space.")] = 1000,
    space: Annotated[
        list[str] | None, typer.Option(help="Only this space; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the architectures.")] = 0,
    jobs: Jobs = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for rows of finished spaces, from which a run resumes."),
    ] = None,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Check all spaces. Exit status 1 if an architecture breaks a promise."""
    count = 1 if quick else count
    names = space or list_spaces()
    for name in names:
        get_space(name)  # report an unknown name before the work starts
    rows, failures = [], []
    with progress_bar("spaces") as bar:
        for name in names:
            settings = {
                "space": name,
                "count": count,
                "seed": seed,
                "texts": text_version(_space(name)),
            }
            kept = _kept(out, settings)
            if kept is None:
                results = _watched(name, checked(name, count, seed, jobs), count, bar)
                row, first = summary(name, results)
                kept = {"settings": settings, "row": row, "failure": first}
                if out:
                    with replacing(_row_path(out, name)) as path:
                        path.write_text(json.dumps(kept, indent=1) + "\n")
            rows.append(kept["row"])
            failures += [kept["failure"]] if kept["failure"] else []
    print_json(rows) if as_json else print_table(
        f"{count} random architectures of each space", rows
    )
    if failures:
        sys.exit("\n".join(f"spaces: {failure}" for failure in failures))


if __name__ == "__main__":
    run_command(main)
