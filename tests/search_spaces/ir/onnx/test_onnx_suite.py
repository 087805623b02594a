"""Claims about all models of the onnx package's own test suite: no crash, no lost weight, one-line
refusals.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.backend.test
import pytest

from search_spaces import InputError, from_text, params, to_text

MODELS = 2_000  # about as many as the suite has
ACCEPTED = 1_500  # at least so many can be texts


def suite() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Every model with its name: those of single operators, and the files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    for case in cases:
        if case.model is not None:
            yield case.name, case.model
    folder = Path(onnx.backend.test.__file__).parent / "data"
    for file in sorted(folder.rglob("*.onnx")):
        yield str(file.relative_to(folder)), onnx.load(file)


def complaint(model: onnx.ModelProto) -> str | None:
    """What is wrong with the text of a model; None if nothing is, "refused" for a model that a text
    cannot hold.
    """
    try:
        text, weights = to_text(model), params(model)
    except InputError as error:
        return "refused" if len(str(error).splitlines()) == 1 else f"several lines: {error}"
    rebuilt = from_text(text)
    if to_text(rebuilt) != text:
        return "no fixed point"
    return None if params(rebuilt) == weights else f"{params(rebuilt)} instead of {weights} weights"


@pytest.mark.slow
def test_models_of_the_onnx_package_are_fixed_points_or_refused() -> None:
    complaints = {name: complaint(model) for name, model in suite()}
    assert len(complaints) > MODELS
    assert {name: c for name, c in complaints.items() if c not in (None, "refused")} == {}
    assert sum(c is None for c in complaints.values()) > ACCEPTED


@pytest.mark.parametrize(
    ("body", "signature"),
    [
        ("c = Constant <value_ints = [0]> () a = Add (x, c) y = Less (a, z)",
         "(int64[N,4] x, int64[N,4] z) => (bool[N,4] y)"),
        ("c = Constant <value_ints = [1]> () a = Mul (x, c) y = Less (a, z)",
         "(int64[N,4] x, int64[N,4] z) => (bool[N,4] y)"),
        ("y, m = Dropout (x)", "(float[N,4] x) => (float[N,4] y, bool[N,4] m)"),
        ("y, m = Dropout (x, r)", "(float[N,4] x, float r) => (float[N,4] y, bool[N,4] m)"),
        ("f = Flatten <axis = 0> (s) y = Mul (x, "
         "f)", "(float[N,4] x, float[4] s) => (float[N,4] y)"),
        ('y = Conv <auto_pad = "SAME_LOWER"> (x, w)', "(float[1,2,5,5] x, float[3,2,3,3] w) => "
                                                      "(float[1,3,5,5] y)"),
    ],
)  # fmt: skip
def test_texts_are_fixed_points(body: str, signature: str) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 21]> net {signature} {{ {body} }}'
    )
    text = to_text(model)
    assert to_text(from_text(text)) == text


def test_output_of_dropout_is_its_input() -> None:
    body = "a, m = Dropout (x) y = Relu (a)"
    signature = "(float[N,4] x) => (float[N,4] y, bool[N,4] m)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 21]> net {signature} {{ {body} }}'
    )
    assert "Relu (x)" in to_text(model)
