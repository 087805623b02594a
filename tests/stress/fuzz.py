"""Fuzz the functions that read model files and texts: `python -m tests.stress.fuzz`.

A mutated input must end in a result or an `InputError`. Failures are any other exception, a crash
of the process, more than 5 s of processor time, more than 1 GiB of memory, and a text that changes
on a round trip. The input of the first failure of each kind is stored. Cases run in worker
processes, so that a crash is one more result.
"""

from __future__ import annotations

import multiprocessing
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import onnx
import typer

import search_spaces
from experiments.runner import AsJson, Jobs, run_command
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from search_spaces import flops, from_text, get_space, list_spaces, load_model, params, to_text
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress
from search_spaces.ir.text import compact, expand, read, write
from tests.stress.mutations import damage_bytes, damage_model, damage_text

STALLED = 60  # seconds of wall time after which a worker without an answer is killed
READER = Path(search_spaces.__file__).parent
OVER_TIME = "too much time"
OVER_MEMORY = "too much memory"
_WIDTH = re.compile(r"\b(channels|features|[c-w]\d*) = (\d+)")

# Models that no space builds: a Transformer block, a computed shape, a branch, a tensor in another
# file.
FOREIGN = (
    """<ir_version: 8, opset_import: ["" : 17]>
    attention (float[N,4,8] x) => (float[N,4,8] y)
    <float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8] scale, float[8] shift, float root = {2.8}> {
      q = MatMul (x, wq)
      k = MatMul (x, wk)
      v = MatMul (x, wv)
      t = Transpose <perm = [0,2,1]> (k)
      s = MatMul (q, t)
      d = Div (s, root)
      p = Softmax <axis = -1> (d)
      o = MatMul (p, v)
      r = Add (o, x)
      y = LayerNormalization <axis = -1> (r, scale, shift)
    }""",
    """<ir_version: 8, opset_import: ["" : 17]>
    reshaped (float[N,4,6,6] x) => (float[N,3] y) <float[3,144] w, float[3] b, int64[1] zero = {0}> {
      shape = Shape (x)
      batch = Gather (shape, zero)
      rest = Constant <value = int64[1] {-1}> ()
      to = Concat <axis = 0> (batch, rest)
      flat = Reshape (x, to)
      y = Gemm <transB = 1> (flat, w, b)
    }""",
    """<ir_version: 8, opset_import: ["" : 17]>
    branch (float[N,2] x, bool c) => (float[N,2] y) {
      y = If (c) <then_branch = then () => (float[N,2] a) { a = Relu (x) },
                  else_branch = other () => (float[N,2] b) { b = Neg (x) }>
    }""",
    """<ir_version: 8, opset_import: ["" : 17]>
    elsewhere (float[N,2] x) => (float[N,2] y)
    <float[2,2] w = ["location": "weights", "offset": "0", "length": "16"]> { y = MatMul (x, w) }""",
)


class Case(NamedTuple):
    """A mutated input: kind of mutation, file suffix and content."""

    kind: str
    suffix: str
    data: bytes


Reader = Callable[[Case, Path], object]
"""The function under test, `read_case` by default. It gets a case and a folder for files."""


class Limits(NamedTuple):
    """Limits of one case: processor seconds, and bytes of memory beyond those of an idle worker."""

    seconds: int = 5
    memory: int = 1 << 30


class Outcome(NamedTuple):
    """`read`, `refused` (InputError) or `failed`; `failure` says what failed where, `message` the
    details.
    """

    status: str
    failure: str = ""
    message: str = ""


# --- cases


@dataclass(frozen=True)
class Corpus:
    """The valid inputs from which cases are mutated."""

    texts: list[str]
    models: list[bytes]

    def case(self, seed: int, index: int) -> Case:
        """Case `index` of a seed. It does not depend on other cases."""
        rng = np.random.default_rng([seed, index])
        text = self.texts[int(rng.integers(len(self.texts)))]
        model = self.models[int(rng.integers(len(self.models)))]
        kinds: dict[str, Callable[[], Case]] = {
            "tokens of a text": lambda: Case(
                "tokens of a text", ".txt", damage_text(text, rng).encode()
            ),
            "bytes of a text": lambda: Case(
                "bytes of a text", ".txt", damage_bytes(text.encode(), rng)
            ),
            "fields of a model": lambda: Case(
                "fields of a model", ".onnx", damage_model(model, rng)
            ),
            "bytes of a model": lambda: Case("bytes of a model", ".onnx", damage_bytes(model, rng)),
        }
        return list(kinds.values())[index % len(kinds)]()


def build_corpus(seed: int, each: int = 3) -> Corpus:
    """Texts and models of random architectures of all spaces, and models that no space builds."""
    texts: list[str] = []
    models = [_foreign(text) for text in FOREIGN]
    for name in list_spaces():
        space = get_space(name)
        for index in range(each):
            texts.append(space.to_text(space.sample(np.random.default_rng([seed, index]))))
            models.append(_narrow(texts[-1]))
    return Corpus(texts, models)


def _narrow(text: str) -> bytes:
    """The text's model with as few channels as possible: large weights are slow, and damage to them
    has no effect.
    """
    for divisor in (64, 32, 16, 8, 4, 2):
        divided = _WIDTH.sub(lambda found: f"{found[1]} = {max(1, int(found[2]) // divisor)}", text)  # noqa: B023
        with suppress(InputError):
            return from_text(divided).SerializeToString()
    return from_text(text).SerializeToString()


def _foreign(text: str) -> bytes:
    """A model from ONNX's own text format. Tensors that it declares without values become zeros."""
    model = onnx.parser.parse_model(text)
    for info in model.graph.value_info:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.zeros(shape, np.float32), info.name)
        )
    return model.SerializeToString()


# --- one case


def run(case: Case, folder: Path, reader: Reader) -> Outcome:
    """Call the reader with a case and classify the outcome."""
    try:
        reader(case, folder)
    except InputError:
        return Outcome("refused")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).parent == READER] or frames
        where = f"{type(error).__name__} in {Path(own[-1].filename).name}:{own[-1].name}"
        return Outcome("failed", where, " ".join(str(error).split())[:300])
    return Outcome("read")


def read_case(case: Case, folder: Path) -> None:
    """Read a text or model file with all functions that accept it, and check the round trip."""
    if case.suffix == ".txt":
        model = from_text(case.data.decode("utf-8", "surrogateescape"))
    else:
        path = folder / "model.onnx"
        path.write_bytes(case.data)
        model = load_model(str(path))
    text = to_text(model)
    params(model), flops(model)
    assert write(compact(expand(read(text)))) == text, "text → graph → text is not a fixed point"


# --- processes


def _work(
    connection: Connection, corpus: Corpus, seed: int, reader: Reader, limits: Limits
) -> None:
    """Run the cases whose numbers arrive through the connection. Exceeding a limit ends the
    process.
    """
    at_rest = _memory()
    resource.setrlimit(
        resource.RLIMIT_AS, (_status("VmSize") + 2 * limits.memory, resource.RLIM_INFINITY)
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        while (index := connection.recv()) is not None:
            case = corpus.case(seed, index)
            seconds = int(time.process_time()) + 1 + limits.seconds
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            outcome = run(case, Path(folder), reader)
            if _memory() - at_rest > limits.memory:
                outcome = Outcome("failed", OVER_MEMORY, f"{outcome.status} {outcome.failure}")
            connection.send(outcome)


def _memory() -> int:
    """Peak memory of this process in bytes (`ru_maxrss` would include the parent's)."""
    return _status("VmHWM")


def _status(name: str) -> int:
    """A size of this process in bytes, from Linux's /proc."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


class _Worker:
    """A process that runs one case at a time. It is restarted if a case ends it."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.index: int | None = None
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=_work, args=(child, *self.arguments), daemon=True)
        self.process.start()
        child.close()

    def give(self, index: int | None) -> None:
        """Send the number of the next case; None ends the worker."""
        self.index, self.since = index, time.monotonic()
        self.connection.send(index)

    def outcome(self) -> Outcome:
        """The outcome of the current case, which has finished or has ended the process."""
        try:
            outcome = self.connection.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode or 0
            ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            self.replace()
            return Outcome(
                "failed", OVER_TIME if ended == "SIGXCPU" else f"the process ends: {ended}"
            )
        if outcome.failure == OVER_MEMORY:  # the peak would be blamed on the next case, too
            self.replace()
        return outcome

    def replace(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.start()

    def stalled(self) -> bool:
        return self.index is not None and time.monotonic() - self.since > STALLED


def outcomes(
    corpus: Corpus,
    seed: int,
    count: int,
    jobs: int = 1,
    reader: Reader = read_case,
    limits: Limits | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """Yield number and outcome of the cases 0..count-1 as they finish."""
    workers = [_Worker(corpus, seed, reader, limits or Limits()) for _ in range(min(jobs, count))]
    following = iter(range(count))
    for worker in workers:
        worker.give(next(following))
    while busy := [worker for worker in workers if worker.index is not None]:
        ready = wait([worker.connection for worker in busy], timeout=1)
        for worker in busy:
            assert worker.index is not None
            if worker.connection in ready:
                yield worker.index, worker.outcome()
            elif worker.stalled():
                yield worker.index, Outcome("failed", f"no answer in {STALLED} s")
                worker.replace()
            else:
                continue
            worker.give(next(following, None))


# --- report


@dataclass
class Report:
    """Counts of outcomes by kind of mutation, and of failures, each with an example."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, case: Case, outcome: Outcome, index: int, out: Path) -> None:
        self.counts[case.kind, outcome.status] += 1
        if outcome.status != "failed":
            return
        self.failures[outcome.failure] += 1
        if outcome.failure not in self.examples:
            file = out / f"{index}{case.suffix}"
            with replacing(file) as path:
                path.write_bytes(case.data)
            self.examples[outcome.failure] = (str(file), outcome.message)

    def rows(self) -> list[dict[str, Any]]:
        kinds = sorted({kind for kind, _ in self.counts})
        statuses = ("read", "refused", "failed")
        return [
            {"mutated": kind, **{status: self.counts[kind, status] for status in statuses}}
            for kind in kinds
        ]

    def failure_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "failure": failure,
                "cases": count,
                "example": self.examples[failure][0],
                "what": self.examples[failure][1],
            }
            for failure, count in self.failures.most_common()
        ]


def fuzz(
    count: int, seed: int, out: Path, jobs: int = 1, progress: Progress | None = None
) -> Report:
    """Run the cases 0..count-1 and write the first input of each failure to `out`."""
    corpus, report = build_corpus(seed), Report()
    for done, (index, outcome) in enumerate(outcomes(corpus, seed, count, jobs), start=1):
        report.add(corpus.case(seed, index), outcome, index, out)
        if progress:
            progress(f"{report.failures.total()} failures", done, count)
    return report


def main(
    count: Annotated[int, typer.Option(min=1, help="Mutated inputs.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mutations.")] = 0,
    jobs: Jobs = 1,
    out: Annotated[Path, typer.Option(help="Folder for the inputs of failures.")] = Path(
        "results/fuzz"
    ),
    as_json: AsJson = False,
) -> None:
    """Fuzz the reading functions. Exit status 1 if a case fails."""
    started = time.perf_counter()
    with progress_bar("fuzz") as bar:
        report = fuzz(count, seed, out, jobs, bar)
    speed = count / (time.perf_counter() - started)
    if as_json:
        print_json(
            {
                "outcomes": report.rows(),
                "failures": report.failure_rows(),
                "cases_per_second": round(speed, 1),
            }
        )
    else:
        print_table(f"{count} mutated inputs, {speed:.0f} per second", report.rows())
        if report.failures:
            print_table("Failures", report.failure_rows())
    if report.failures:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
