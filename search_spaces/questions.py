"""The questions that `build` is known to ask: a draw whose answers were given before need not build a network."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from search_spaces.choosers import Chooser
from search_spaces.common.errors import InputError
from search_spaces.domains import Choice, Domain

MAX_QUESTIONS = 20_000  # of a space, after which no more are remembered


@dataclass(slots=True)
class _Question:
    """A question, and what is asked after each answer; None: nothing more."""

    name: str
    options: Domain
    after: dict[tuple[type, Choice], _Question | None] = field(default_factory=dict)


class Questions:
    """A tree: `build` is a function of the choices, so that the same answers lead to the same next question."""

    def __init__(self) -> None:
        self._first: dict[tuple[type, Choice], _Question | None] = {}
        self._count = 0

    def ask(self, chooser: Chooser) -> bool:
        """Ask a new chooser as far as the questions are known; True if these are all. A bad answer ends it, too."""
        after, answer = self._first, _START
        with suppress(InputError):
            while answer in after:
                question = after[answer]
                if question is None:
                    return True
                answer = _key(chooser.answer(question.name, question.options))
                after = question.after
        return False

    def learn(self, chooser: Chooser) -> None:
        """Remember all that a chooser was asked by a `build` that came to its end."""
        after, answer = self._first, _START
        for name, options in chooser.options.items():
            if answer not in after:
                if self._count == MAX_QUESTIONS:
                    return
                after[answer] = _Question(name, options)
                self._count += 1
            question = after[answer]
            if question is None or question.name != name:
                return  # not a function of the choices
            after, answer = question.after, _key(chooser.choices[name])
        after.setdefault(answer, None)


def _key(answer: Choice) -> tuple[type, Choice]:
    return type(answer), answer


_START = _key(None)
