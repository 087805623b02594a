"""Claims about files of a user's own: each is run once in a process, and what goes wrong in one is
named.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

from search_spaces import InputError, get_space
from search_spaces.common.plug_ins import function_from_file

FILE = """
from pathlib import Path
from search_spaces import SearchSpace

with Path("runs").open("a") as runs:
    runs.write(".")

class Mine(SearchSpace):
    input_shape = (1, 8, 8)

    def build(self, trial, net):
        return net.classifier(net.conv(net.input, trial.suggest_categorical("width", [4, 8])))

def evaluate(model, architecture, report):
    return {}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_file_for_space_and_evaluator_is_run_once_and_again_when_it_was_edited() -> None:
    Path("mine.py").write_text(FILE)
    first, by_path = get_space("mine.py:Mine"), get_space(f"{Path.cwd()}/mine.py:Mine")
    assert type(first) is type(by_path)
    assert (first.name, by_path.name) == ("mine.py:Mine", f"{Path.cwd()}/mine.py:Mine"), (
        "each has its own reference"
    )
    function_from_file("mine.py:evaluate", "evaluator")
    assert Path("runs").read_text() == "."
    Path("mine.py").write_text(FILE.replace("[4, 8]", "[4, 16]"))
    assert get_space("mine.py:Mine").architecture({"width": 16}).as_dict() == {"width": 16}
    assert Path("runs").read_text() == ".."


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nnothing", r"mine.py, line 2: NameError on import: name 'nothing'"),
        (
            "import sys\nsys.exit(3)",
            r"mine.py, line 2: .* the code ended the process: SystemExit\(3\)",
        ),
        ("import beside_mine", r"beside_mine.py, line 1: ZeroDivisionError on import"),
        ("def build(trial:", r"mine.py: SyntaxError on import: .*line 1"),
    ],
)
def test_a_failing_import_is_named_with_its_place(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("mine.py").write_text(code)
    Path("beside_mine.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match=message) as raised:
        get_space("mine.py:Mine")
    assert "\n" not in str(raised.value)


def test_a_build_that_ends_the_process_is_an_error_with_its_place() -> None:
    Path("mine.py").write_text(
        FILE.replace("return net", "raise SystemExit('bye')\n        return net")
    )
    with pytest.raises(
        InputError, match=r"mine.py, line 12: .* the code ended the process: SystemExit\('bye'\)"
    ):
        get_space("mine.py:Mine").sample(np.random.default_rng(0))


def test_a_file_that_needs_torchvision_runs_beside_a_torch_without_its_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prepare() -> bool:
        Path("prepared").touch()
        return True

    broken = (
        "try:\n    raise RuntimeError('operator torchvision::nms does not exist')\nexcept "
        "RuntimeError as e:\n"
    )
    broken = (
        f"from pathlib import Path\nif not Path('prepared').exists():\n{indent(broken, '    ')}"
    )
    Path("mine.py").write_text(
        f"{broken}        raise ModuleNotFoundError('no timm') from e\n{FILE}"
    )
    monkeypatch.setattr("search_spaces.common.plug_ins.prepare_torchvision", prepare)
    assert get_space("mine.py:Mine").name == "mine.py:Mine"
    monkeypatch.setattr("search_spaces.common.plug_ins.prepare_torchvision", lambda: False)
    Path("prepared").unlink()
    Path("mine.py").write_text(Path("mine.py").read_text() + "# edited")
    with pytest.raises(
        InputError, match=r"mine.py, line 6: ModuleNotFoundError on import: no timm"
    ):
        get_space("mine.py:Mine")
