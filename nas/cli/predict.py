"""`nas predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import Json, Seed, naming, split_names
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from search_spaces.graph.ir import Graph


def predict(
    networks: Annotated[list[Path], typer.Argument(help=".onnx or .txt files")],
    checkpoint: Annotated[str, typer.Option(help="A checkpoint's folder, or a shipped one: rlm-nasbench201.")],
    metrics: Annotated[
        str | None, typer.Option(help="Comma-separated; all that the checkpoint knows by default.")
    ] = None,
    given: Annotated[list[str] | None, typer.Option(help="A known value, METRIC=NUMBER; for all networks.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples per network.")] = 64,
    predictor: Annotated[
        str | None, typer.Option(help="FILE.py:CLASS that the checkpoint is of, if it is a predictor of your own.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Predict metrics of ONNX models or texts, with uncertainty (mean ± standard deviation).

    params and flops are counted, never predicted.
    """
    import predictors
    from predictors.metrics import EXACT
    from predictors.registry import predictor_class
    from search_spaces.graph.costs import graph_flops, graph_params
    from search_spaces.text.program import compact
    from search_spaces.text.syntax import write

    model = predictors.load(checkpoint, predictor_class(predictor) if predictor else None)
    known = {name: [value] * len(networks) for name, value in map(_known_value, given or ())}
    asked = split_names(metrics) if metrics else [m for m in model.metrics if m not in known]
    graphs = [_read_network(path) for path in networks]
    exact: dict[str, list[float]] = {
        "params": [float(graph_params(g)) for g in graphs],
        "flops": [float(graph_flops(g)) for g in graphs],
    }
    if contradicted := [name for name in known if name in EXACT]:
        raise InputError(f"--given {contradicted[0]}: it follows from the network")
    known |= {name: values for name, values in exact.items() if name in model.metrics}
    learned = [name for name in asked if name not in EXACT]
    texts = [write(compact(graph)) for graph in graphs]
    result = model.predict(texts, learned, given=known, samples=samples, seed=seed) if learned else None
    rows: list[dict[str, Any]] = []
    for i, path in enumerate(networks):
        values = {m: {"mean": exact[m][i], "std": 0.0} for m in EXACT}
        if result:
            values |= {m: {"mean": result.mean[i, j], "std": result.std[i, j]} for j, m in enumerate(learned)}
        rows.append({"network": str(path), **{m: values[m] for m in asked}})
    if as_json:
        print_json(rows)
        return
    print_table(f"Predictions of {checkpoint}", [{k: _shown(v) for k, v in row.items()} for row in rows])


def _shown(cell: Any) -> str:
    if not isinstance(cell, dict):
        return str(cell)
    return f"{cell['mean']:.4g} ± {cell['std']:.2g}" if cell["std"] else f"{cell['mean']:g}"


def _known_value(argument: str) -> tuple[str, float]:
    name, _, value = argument.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise InputError(f"--given {argument}: write METRIC=NUMBER") from None


def _read_network(path: Path) -> Graph:
    """A `.txt` file as text, anything else as an ONNX model."""
    from search_spaces import load_model
    from search_spaces.onnx import from_model
    from search_spaces.text.program import expand
    from search_spaces.text.syntax import read

    if path.suffix != ".txt":
        return naming(path, lambda: from_model(load_model(str(path))))
    try:
        content = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
    return naming(path, lambda: expand(read(content)))
