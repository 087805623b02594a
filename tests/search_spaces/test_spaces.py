"""Claims about every registered space, and about choosing in general."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_spaces import InputError, get_space, list_spaces
from search_spaces.common.errors import unknown
from search_spaces.ir.builder import Network, Tensor
from search_spaces.space import SearchSpace
from search_spaces.testing import check_space

# The representatives of `make test` come first: cells of one kind and of two.
FIRST = ("nasbench201", "darts")
SPACES = (*FIRST, *sorted(set(list_spaces()).difference(FIRST)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_space_conforms(name: str) -> None:
    check_space(get_space(name))


def test_small_skeleton_of_another_data_set_conforms() -> None:
    check_space(
        get_space(
            "nasbench201", channels=4, cells=1, input_shape=(1, 8, 8), num_classes=3, prune=True
        )
    )


def test_space_that_asks_and_builds_differently_does_not_conform() -> None:
    class Wider(type(get_space("hiaml"))):  # type: ignore[misc]
        def build(self, trial: Any, net: Network) -> Tensor:
            net.conv(net.input, trial.suggest_categorical("width", [4, 8]))
            return super().build(trial, net)

    with pytest.raises(
        AssertionError, match="ask must make the choices of build: the choice 'width' is missing"
    ):
        check_space(Wider(input_shape=(1, 16, 16), channels=4), count=1)


def test_enumeration_visits_every_architecture_once() -> None:
    class Conditional(SearchSpace):
        name = "conditional"
        input_shape = (1, 4, 4)

        def build(self, trial: Any, net: Network) -> Tensor:
            x = net.conv(net.input, 2)
            for i in range(trial.suggest_int("blocks", 0, 2)):
                x = net.conv_bn(x, kernel=trial.suggest_categorical(f"kernel{i}", [1, 3]))
            return net.classifier(x)

    found = list(Conditional().enumerate())
    assert len(found) == len(set(found)) == 1 + 2 + 4


def test_enumeration_of_a_published_space_has_its_size() -> None:
    space = get_space("tiny-resnet")
    assert sum(1 for _ in space.enumerate()) == space.size


def test_mutation_changes_one_choice_and_what_depends_on_it() -> None:
    space, rng = get_space("nasbench201"), np.random.default_rng(0)
    arch = space.sample(rng)
    for _ in range(20):
        changed = sum(
            a != b for a, b in zip(arch.choices, space.mutate(arch, rng).choices, strict=True)
        )
        assert changed == 1


def test_unknown_space_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'nasbench201'"):
        get_space("nasbench-201")


def test_of_many_known_names_an_error_lists_the_near_ones() -> None:
    names = [f"device{i}_ms" for i in range(40)]
    message = str(unknown("metric", "device7", names))
    assert message.startswith(
        "unknown metric 'device7': did you mean 'device7_ms'? known: device7_ms, "
    )
    assert message.endswith(" and 35 others")
    assert str(unknown("metric", "zzz", names)).count("_ms") == 40, "all, where none is near"
    assert str(unknown("metric", "flop", ["flops", "params", "flops"])).endswith(
        "known: flops, params"
    ), "each once"


def test_unknown_option_is_named() -> None:
    with pytest.raises(InputError, match="depth"):
        get_space("nasbench201", depth=3)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, "'width' is missing"),
        ({"width": 9}, "unknown option for width"),
    ],
)
def test_wrong_choices_are_named(choices: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_space("tiny-resnet").architecture(choices)


def test_choice_that_is_never_asked_for_is_refused() -> None:
    space = get_space("tiny-resnet")
    arch = space.sample(np.random.default_rng(0)).as_dict()
    with pytest.raises(InputError, match="unknown choice 'widht'"):
        space.architecture({**arch, "widht": 8})


def test_space_in_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "my_space.py"
    file.write_text(
        "from search_spaces import SearchSpace\n"
        "class Mine(SearchSpace):\n"
        "    input_shape = (1, 8, 8)\n"
        "    def build(self, trial, net):\n"
        "        return net.classifier(net.conv_bn_relu(net.input, trial.suggest_int('width', 2, "
        "4)))\n"
    )
    check_space(get_space(f"{file}:Mine"), count=5)
    assert get_space(str(file)).size is None
    with pytest.raises(InputError, match="did you mean 'Mine'"):
        get_space(f"{file}:Mini")


def test_users_file_that_fails_to_import_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import no_such_module\n")
    with pytest.raises(InputError, match=r"broken\.py, line 1: ModuleNotFoundError"):
        get_space(f"{file}:Mine")
    with pytest.raises(InputError, match="no such Python file"):
        get_space(str(tmp_path / "missing.py:Mine"))


def test_importing_search_spaces_loads_no_heavy_package() -> None:
    code = (
        "import sys, search_spaces; sys.exit(bool({'torch', 'optuna', 'transformers'} & "
        "set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
