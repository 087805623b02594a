"""The generator of programs in three languages, each with one to three functions and a main
part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from string import Template
from typing import NamedTuple

import numpy as np

from experiments.programs import (
    c_numbers,
    c_structures,
    cpp_kernels,
    python_numbers,
    python_structures,
)
from experiments.programs.kernels import Kernel

LANGUAGES = ("python", "c", "c++")
KERNELS = {
    "python": (*python_numbers.KERNELS, *python_structures.KERNELS),
    "c": (*c_numbers.KERNELS, *c_structures.KERNELS),
    "c++": cpp_kernels.KERNELS,
}
PYTHON_NUMBERS = """\
state = $seed


def rand(bound):
    global state
    state = (state * 1103515245 + 12345) % 2147483648
    return (state >> 8) % bound
"""
C_NUMBERS = """\
static unsigned long state = $seed;

static long rand_below(long bound) {
    state = (state * 1103515245UL + 12345UL) % 2147483648UL;
    return (long)(state >> 8) % bound;
}
"""  # the same pseudo-random numbers as in Python
NAMES = (
    "work",
    "run",
    "solve",
    "compute",
    "step",
    "task",
    "stage",
    "process",
    "first",
    "second",
    "evaluate",
    "part",
)
FUNCTIONS = (0.5, 0.3, 0.2)  # shares of programs with one, two and three functions
REPEATED = 0.3  # share of calls in a loop
MAX_REPEATS = 6


class Program(NamedTuple):
    """A program: its language, the families of its functions (joined by +) and its text."""

    language: str
    families: str
    text: str


class Call(NamedTuple):
    """One call in the main part: the function's name, its size, and how often it runs."""

    name: str
    size: int
    repeats: int


def programs(count: int, seed: int) -> Iterator[Program]:
    """Yield `count` different programs. The languages alternate."""
    rng = np.random.default_rng(seed)
    seen: set[str] = set()
    while len(seen) < count:
        program = _program(LANGUAGES[len(seen) % len(LANGUAGES)], rng)
        if program.text not in seen:
            seen.add(program.text)
            yield program


def _program(language: str, rng: np.random.Generator) -> Program:
    number = 1 + int(rng.choice(len(FUNCTIONS), p=FUNCTIONS))
    known = KERNELS[language]
    chosen = [known[int(i)] for i in rng.integers(len(known), size=number)]
    names = [str(name) for name in rng.choice(NAMES, number, replace=False)]
    functions = [_function(kernel, name, rng) for kernel, name in zip(chosen, names, strict=True)]
    calls = [_call(kernel, name, rng) for kernel, name in zip(chosen, names, strict=True)]
    uses = sorted({use for kernel in chosen for use in kernel.uses})
    state = str(rng.integers(1, 1_000_000))
    text = (_python if language == "python" else _c)(functions, calls, uses, state, language)
    return Program(language, "+".join(kernel.family for kernel in chosen), text)


def _function(kernel: Kernel, name: str, rng: np.random.Generator) -> str:
    options = {}
    for key, values in kernel.options.items():
        options[key] = values[int(rng.integers(len(values)))]
    source = Template(kernel.source).safe_substitute(options)
    return Template(source).substitute(f=name)


def _call(kernel: Kernel, name: str, rng: np.random.Generator) -> Call:
    size = int(np.exp(rng.uniform(np.log(kernel.low), np.log(kernel.high + 1))))
    repeats = int(rng.integers(2, MAX_REPEATS + 1)) if rng.random() < REPEATED else 1
    return Call(name, min(size, kernel.high), repeats)


def _random_numbers(functions: Sequence[str], prelude: str, state: str) -> list[str]:
    """Source of the pseudo-random number generator, if a function uses it."""
    used = any(re.search(r"\brand(_below)?\(", function) for function in functions)
    return [Template(prelude).substitute(seed=state)] if used else []


def _python(
    functions: Sequence[str], calls: Sequence[Call], uses: Sequence[str], state: str, _: str
) -> str:
    # 1. What comes before the functions.
    parts = []
    if uses:
        imports = [f"import {module}" for module in uses]
        parts.append("\n".join(imports) + "\n")
    parts += _random_numbers(functions, PYTHON_NUMBERS, state)

    # 2. The main function calls each of them, perhaps several times.
    main = ["def main():", "    total = 0"]
    for name, size, repeats in calls:
        indentation = "    "
        if repeats > 1:
            main.append(f"    for _ in range({repeats}):")
            indentation = "        "
        main.append(f"{indentation}total += {name}({size})")
    main.append("    print(total)\n")
    return "\n\n".join([*parts, *functions, "\n".join(main), "main()\n"])


def _c(
    functions: Sequence[str], calls: Sequence[Call], uses: Sequence[str], state: str, language: str
) -> str:
    arguments = "void" if language == "c" else ""
    main = [f"int main({arguments}) {{", "    long total = 0;"]
    for name, size, repeats in calls:
        loop = f"for (int i = 0; i < {repeats}; i++) " if repeats > 1 else ""
        main.append(f"    {loop}total += {name}({size});")
    main += ['    printf("%ld\\n", total);', "    return 0;", "}\n"]
    headers = [f"#include <{header}>" for header in sorted({"stdio.h", *uses})]
    numbers = _random_numbers(functions, C_NUMBERS, state)
    return "\n".join(["\n".join(headers) + "\n", *numbers, *functions, "\n".join(main)])
