"""Claims about failures in a search: infeasible choices, evaluators that raise, processes that
end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas import Evaluator, Problem, search
from nas.search.objectives import parse_constraints, parse_objectives
from nas.search.search import MAX_FAILURES
from nas.search.study.load import read_search
from nas.search.study.storage import JournalFile
from nas.search.study.trial_logger import EvaluationLogger
from nas.search.study.trials import TrialReader
from nas.search.study.workers import MAX_RESTARTS
from search_spaces import Architecture, Infeasible, InputError, SearchSpace, get_space
from search_spaces.common.errors import StorageError
from search_spaces.ir.builder import Network, Tensor

SPACE = get_space("tiny-resnet")
OBJECTIVES = "params,flops"


class Grouped(SearchSpace):
    """A width and a number of groups, which must divide it: 8 of 12 combinations can be built."""

    name = "grouped"
    input_shape = (1, 4, 4)
    num_classes = 2
    own_check = True

    def build(self, trial: Any, net: Network) -> Tensor:
        width = trial.suggest_categorical("width", [4, 6, 8])
        groups = trial.suggest_categorical("groups", [1, 2, 3, 8])
        if self.own_check and width % groups:
            raise Infeasible(f"{groups} groups do not divide {width}")
        return net.classifier(net.conv(net.conv(net.input, width), width, groups=groups))


class ByBuilder(Grouped):
    """The same, refused by the builder's own check."""

    own_check = False


class Costs:
    """Parameters and FLOPs. Raises `error` in evaluations whose number satisfies `fails`."""

    metrics = ("params", "flops")

    def __init__(
        self, space: SearchSpace = SPACE, fails: Any = lambda i: False, error: Any = None
    ) -> None:
        self.space, self.fails, self.error = (
            space,
            fails,
            error or RuntimeError("CUDA out of memory"),
        )
        self.seen: list[Architecture] = []

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        self.seen += architectures
        if self.fails(len(self.seen)):
            raise self.error
        return np.array(
            [[self.space.params(a), self.space.flops(a)] for a in architectures], dtype=float
        )


class Killed(BaseException):
    """Ends the search without cleanup, like SIGKILL."""


# --- evaluators that raise


def test_an_evaluation_that_raises_is_a_failed_trial_with_its_reason(tmp_path: Path) -> None:
    evaluator = Costs(fails=lambda i: i % 3 == 0)
    result = search(
        Problem(SPACE, evaluator, OBJECTIVES),
        sampler="random",
        evaluations=12,
        storage=tmp_path / "j.log",
    )
    assert len(evaluator.seen) == len(result.evaluated.architectures) == 12
    assert np.isnan(result.evaluated.values).any(1).sum() == len(result.failures) == 4
    assert all(
        "RuntimeError: CUDA out of memory" in failure["reason"] for failure in result.failures
    )
    assert f"{__file__}, line " in result.failures[0]["reason"], (
        "the user's own file and line are named"
    )
    assert read_search(tmp_path / "j.log").failures == result.failures


def test_a_search_refuses_a_space_that_draws_random_numbers_itself(switches: SearchSpace) -> None:
    class Random(type(switches)):  # type: ignore[misc]
        def build(self, trial: Any, net: Network) -> Tensor:
            trial.suggest_int("width", 1, 2)
            return net.classifier(net.conv(net.input, random.randrange(1, 999)))

    with pytest.raises(InputError, match="build made two networks of the same choices"):
        search(Problem(Random(), Costs(), "params"), sampler="random", evaluations=3)


def test_ten_failures_in_a_row_end_the_search_with_the_last_reason_and_it_can_go_on(
    tmp_path: Path,
) -> None:
    evaluator = Costs(fails=lambda i: i > 2, error=ValueError("no such file: labels.npy"))
    with pytest.raises(
        InputError, match=r"10 evaluations in a row failed; .*ValueError: no such file: labels.npy"
    ):
        search(
            Problem(SPACE, evaluator, OBJECTIVES),
            sampler="random",
            evaluations=30,
            storage=tmp_path / "j.log",
        )
    assert len(evaluator.seen) == 2 + MAX_FAILURES
    mended = Costs()
    assert (
        len(
            search(
                Problem(SPACE, mended, OBJECTIVES),
                sampler="random",
                evaluations=30,
                storage=tmp_path / "j.log",
            ).evaluated.values
        )
        == 30
    )
    assert len(mended.seen) == 30 - 12


def test_a_full_disk_is_not_the_fault_of_the_users_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = JournalFile.append_logs

    def full(self: JournalFile, logs: list[dict[str, Any]]) -> None:
        if any("distribution" in log for log in logs):  # while `build` asks for a choice
            raise StorageError(f"cannot use {self.path}: No space left on device")
        append(self, logs)

    monkeypatch.setattr(JournalFile, "append_logs", full)
    space = Grouped()
    with pytest.raises(StorageError, match=r"^cannot use"):
        search(
            Problem(space, Costs(space), OBJECTIVES),
            sampler="random",
            evaluations=3,
            storage=tmp_path / "j.log",
        )


def test_a_value_that_is_not_finite_says_which(tmp_path: Path) -> None:
    class Diverging(Costs):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            return super().__call__(architectures) * [1, np.nan if len(self.seen) == 2 else 1]

    assert [
        f["reason"]
        for f in search(
            Problem(SPACE, Diverging(), OBJECTIVES), sampler="random", evaluations=4
        ).failures
    ] == ["flops is nan"]


# --- choices that do not go together


@pytest.mark.parametrize("space", [Grouped(), ByBuilder()], ids=["Infeasible", "InputError"])
@pytest.mark.parametrize("sampler", ["random", "nsga2", "ridge"])
def test_infeasible_choices_are_neither_evaluated_nor_counted(
    space: SearchSpace, sampler: str
) -> None:
    evaluator = Costs(space)
    options = {"n_startup": 3, "pool": 100, "fresh": 30} if sampler == "ridge" else None
    result = search(
        Problem(space, evaluator, OBJECTIVES),
        sampler=sampler,
        evaluations=8,
        sampler_options=options,
    )
    widths = {(dict(a.choices)["width"], dict(a.choices)["groups"]) for a in evaluator.seen}
    assert widths == {(w, g) for w in (4, 6, 8) for g in (1, 2, 3, 8) if w % g == 0}
    assert len(result.front_rows) == 1
    assert all("divide" in failure["reason"] for failure in result.failures)
    assert sampler == "ridge" or result.failures, (
        "a plain sampler proposes such choices; their trials say why they failed"
    )


def test_a_space_draws_changes_and_lists_feasible_architectures_only() -> None:
    space, rng = Grouped(), np.random.default_rng(0)
    all_ = set(space.enumerate())
    assert len(all_) == 8
    architecture = space.sample(rng)
    for _ in range(50):
        changed = space.mutate(architecture, rng)
        architecture = space.crossover(changed, space.sample(rng), rng)
        assert {changed, architecture} <= all_


def test_a_space_without_any_feasible_architecture_says_so() -> None:
    class Never(Grouped):
        def build(self, trial: Any, net: Network) -> Tensor:
            raise Infeasible(f"width {trial.suggest_int('width', 1, 3)} is too small")

    with pytest.raises(
        InputError,
        match=r"grouped: 200 draws in a row were infeasible; the last: width \d is too small",
    ):
        search(Problem(Never(), Costs(Never()), OBJECTIVES), sampler="random", evaluations=5)


# --- processes that end


def kill_during(
    storage: Path, number: int, times: int, error: type[BaseException]
) -> list[Architecture]:
    """Run a search that dies in evaluation `number`, several times. Returns the last architecture
    of each run.
    """
    begun = []
    for run in range(times):
        evaluator = Costs(fails=lambda i, run=run: i == (number if run == 0 else 1), error=error())
        with pytest.raises(error):
            search(
                Problem(SPACE, evaluator, OBJECTIVES),
                sampler="random",
                evaluations=8,
                storage=storage,
            )
        begun.append(evaluator.seen[-1])
    return begun


def test_a_network_that_ends_every_process_is_given_up_after_two_more_tries(tmp_path: Path) -> None:
    begun = kill_during(tmp_path / "j.log", 4, 1 + MAX_RESTARTS, Killed)
    assert len(set(begun)) == 1
    evaluator = Costs()
    result = search(
        Problem(SPACE, evaluator, OBJECTIVES),
        sampler="random",
        evaluations=8,
        storage=tmp_path / "j.log",
    )
    assert begun[0] not in evaluator.seen
    assert len(result.evaluated.architectures) == 8
    (failure,) = result.failures
    assert "it ended 3 processes in a row" in failure["reason"]


def test_a_training_that_makes_progress_is_never_given_up(tmp_path: Path) -> None:
    """Each process is killed after one more epoch, as on preemptible machines."""

    class Trained(Evaluator):
        metrics = Costs.metrics
        epochs = 0

        def train(
            self,
            architecture: Architecture,
            observed: Any,
            log: EvaluationLogger,
            segment: Any = None,
        ) -> dict[str, float]:
            for epoch in range(1, self.epochs + 1):
                log.report(epoch, {"params": 1.0})
            if self.epochs < 6:
                raise Killed
            return dict.fromkeys(self.metrics, 1.0)

    evaluator = Trained()
    for evaluator.epochs in range(1, 6):
        with pytest.raises(Killed):
            search(
                Problem(SPACE, evaluator, OBJECTIVES),
                sampler="random",
                evaluations=1,
                storage=tmp_path / "j.log",
            )
    evaluator.epochs = 6
    result = search(
        Problem(SPACE, evaluator, OBJECTIVES),
        sampler="random",
        evaluations=1,
        storage=tmp_path / "j.log",
    )
    assert not result.failures
    assert len(result.study.trials[-1].intermediate_values) == 6


def test_a_network_that_the_user_interrupts_is_never_given_up(tmp_path: Path) -> None:
    begun = kill_during(tmp_path / "j.log", 4, 5, KeyboardInterrupt)
    evaluator = Costs()
    result = search(
        Problem(SPACE, evaluator, OBJECTIVES),
        sampler="random",
        evaluations=8,
        storage=tmp_path / "j.log",
    )
    assert {*begun} == {evaluator.seen[0]}
    assert not result.failures


# --- constraints that nothing keeps


def test_where_nothing_keeps_a_constraint_the_least_violating_networks_are_known() -> None:
    result = search(
        Problem(SPACE, Costs(), "flops", "params <= 5"), sampler="random", evaluations=12
    )
    assert not result.front_rows
    rows = result.least_violating
    assert len(rows) == 5
    params = sorted(SPACE.params(architecture) for architecture in result.evaluated.architectures)
    assert [row["params"] for row in rows] == params[:5]
    assert [row["violation"] for row in rows] == [(count - 5) / 5 for count in params[:5]]
    assert set(rows[0]) == {"architecture", "flops", "params", "violation"}


def test_violations_are_relative_to_their_bounds() -> None:
    reader = TrialReader(
        SPACE, parse_objectives("flops"), parse_constraints("params <= 1000,top1 >= 80,loss <= 0")
    )
    values = np.array(
        [[9, 1500, 80, 0], [9, 1100, 20, 0], [9, 1100, 79, 0.2], [9, 900, 90, -1]], float
    )
    np.testing.assert_allclose(reader.violation(values), [0.5, 0.75, 0.2, 0])
