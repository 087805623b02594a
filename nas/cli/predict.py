"""`nas predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import Json, Seed, naming, split_names
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    import onnx

FAR = 3.0  # in units of how far a checkpoint's examples are from each other


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
    """Predict metrics of ONNX models or texts, with uncertainty (mean ± standard deviation)."""
    import predictors
    from predictors.registry import predictor_class

    model = predictors.load(checkpoint, predictor_class(predictor) if predictor else None)
    known = {name: [value] * len(networks) for name, value in map(_known_value, given or ())}
    asked = split_names(metrics) if metrics else [m for m in model.metrics if m not in known]
    inputs = [_read_network(path) for path in networks]
    exact = _exact(inputs, asked)
    learned = [name for name in asked if name not in exact]
    result = model.predict(inputs, learned, given=known, samples=samples, seed=seed)
    rows: list[dict[str, Any]] = []
    for i, path in enumerate(networks):
        values = {m: {"mean": result.mean[i, j], "std": result.std[i, j]} for j, m in enumerate(learned)}
        values |= {name: {"mean": column[i], "std": 0.0} for name, column in exact.items()}
        rows.append({"network": str(path), **{name: values[name] for name in asked}})
    novelty = model.novelty(inputs).tolist()  # NaN of a predictor that cannot say
    if as_json:
        print_json([{**row, "novelty": None if far != far else far} for row, far in zip(rows, novelty, strict=True)])
        return
    shown = [{k: f"{v['mean']:.4g} ± {v['std']:.2g}" if isinstance(v, dict) else v for k, v in r.items()} for r in rows]
    print_table(f"Predictions of {checkpoint}", shown)
    for path, far in zip(networks, novelty, strict=True):
        if far > FAR and learned:
            print(f"{path}: far from what this checkpoint knows ({far:.0f} times as far as its examples are apart)")


def _exact(networks: list[str | onnx.ModelProto], metrics: list[str]) -> dict[str, list[float]]:
    """Params and FLOPs, where they are asked for: they follow from the network, and are never predicted."""
    from search_spaces import to_text
    from search_spaces.graph.costs import graph_flops, graph_params
    from search_spaces.text.program import expand
    from search_spaces.text.syntax import read

    costs = {name: cost for name, cost in (("params", graph_params), ("flops", graph_flops)) if name in metrics}
    graphs = [expand(read(n if isinstance(n, str) else to_text(n))) for n in networks] if costs else []
    return {name: [float(cost(graph)) for graph in graphs] for name, cost in costs.items()}


def _known_value(argument: str) -> tuple[str, float]:
    from predictors.metrics import EXACT

    name, _, value = argument.partition("=")
    if name in EXACT:
        raise InputError(f"--given {argument}: {name} is counted in each network; leave it out")
    try:
        return name, float(value)
    except ValueError:
        raise InputError(f"--given {argument}: write METRIC=NUMBER") from None


def _read_network(path: Path) -> str | onnx.ModelProto:
    """A `.txt` file as checked text, anything else as an ONNX model."""
    from search_spaces import load_model
    from search_spaces.text.program import compact, expand
    from search_spaces.text.syntax import read, write

    if path.suffix != ".txt":
        return load_model(str(path))
    try:
        content = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
    return naming(path, lambda: write(compact(expand(read(content)))))
