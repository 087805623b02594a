"""What `nas search` prints: the summary and the front, or how workers join a prepared search."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from nas.cli.console import (
    print_json,
    print_table,
    with_arrows,
)

if TYPE_CHECKING:
    from nas.comparison.studies import Studies
    from nas.search.duration import Duration


@contextmanager
def ending_prepared(as_json: bool) -> Iterator[None]:
    """End the command with status 0 if searches were only prepared; print how workers join them."""
    from nas.comparison.runs import Prepared
    from nas.search.study.schema import without_passwords

    try:
        yield
    except Prepared as prepared:
        searches = [(str(storage), name) for storage, name in prepared.searches]
        if as_json:
            print_json(
                {
                    "prepared": [
                        {"storage": without_passwords(storage), "study": name}
                        for storage, name in searches
                    ]
                }
            )
        else:
            for storage, name in searches:
                print(
                    without_passwords(
                        f"prepared: nas worker --storage {shlex.quote(storage)} --study {name}"
                    )
                )
        raise typer.Exit from None


def show_search(
    studies: Studies,
    constraints: list[str],
    problem: str,
    as_json: bool,
    durations: list[Duration],
) -> None:
    """Print the summary and the front, or JSON.

    The command exits after JSON, or if no network satisfies the constraints.

    Args:
        durations: estimates that were announced, which JSON has, too.
    """
    from nas.search.study.schema import sampler_label

    front, failures = studies.front_rows, studies.failures
    nearest = [] if front else studies.least_violating
    if failures:
        count = sum(failure["trials"] for failure in failures)
        print(f"nas: {count} trials failed; the last: {failures[-1]['reason']}", file=sys.stderr)
    if nearest:
        print(f"nas: no network satisfies {' and '.join(constraints)}", file=sys.stderr)
    if as_json:
        print_json(
            {
                "summary": studies.table(),
                "front": front,
                "failures": failures,
                "least_violating": nearest,
                "durations": [duration.summary for duration in durations],
            }
        )
        raise typer.Exit(bool(nearest))
    if nearest:
        print_table("The least violating networks; violations are relative to the bound", nearest)
        raise typer.Exit(1)
    truth = (
        "the true hypervolume" if studies.benchmark else "the hypervolume of the best front found"
    )
    print_table(f"{problem}: share of {truth}", studies.table())
    several = len(studies.searches)
    first = studies.first.settings
    of = (
        f"all {several} searches"
        if several > 1
        else f"{sampler_label(first['sampler'])}, seed {first['seed']}"
    )
    print_table(
        f"Pareto front of {of}",
        [with_arrows(row, studies.objectives) for row in _shown_front(studies)],
    )


def _shown_front(studies: Studies) -> list[dict[str, Any]]:
    """Rows for display.

    They name networks by file, because their choices may be long, and say where each comes from. A
    single search needs no sampler and seed, and a front without repeated evaluations no number of
    evaluations.
    """
    from nas.search.study.files import network_name

    front = studies.front_networks
    shown = ["sampler", "seed"] if len(studies.searches) > 1 else []
    shown += ["evaluations"] if any(len(network.evaluations) > 1 for network in front) else []
    return [
        {"network": f"front/{network_name(place, len(front))}"}
        | {objective.name: network.values[objective.name] for objective in studies.objectives}
        | network.further
        | network.again
        | {name: network.origin[name] for name in shown}
        for place, network in enumerate(front)
    ]
