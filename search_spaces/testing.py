"""`check_space`: the conformance suite for search spaces, including your own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx

from search_spaces import Architecture, SearchSpace, TorchSpace, from_text
from search_spaces.choosers import ReplayChooser
from search_spaces.common.errors import InputError
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.onnx import from_model
from search_spaces.ir.text import compact, write


def check_space(space: SearchSpace, count: int = 20, seed: int = 0) -> None:
    """Check a space by `count` random architectures.

    Costs, ONNX models and texts must be valid and consistent. Sampling must depend on the generator
    alone; mutation and crossover must stay in the space. If onnxruntime is installed, it runs the
    models, too.

    Args:
        space: the space.
        count: number of architectures.
        seed: seed of the architectures.

    Raises:
        AssertionError: if a check fails; the message says what to change.
    """
    rng = np.random.default_rng(seed)
    archs = [space.sample(rng) for _ in range(count)]
    again = [space.sample(np.random.default_rng(seed)) for _ in range(2)]
    assert again[0] == again[1] == archs[0], (
        "sample: the same generator must give the same architecture"
    )
    for arch in archs:
        _check_architecture(space, arch)
        _check_network(space, arch)
    _check_variation(space, archs, rng)


def _check_architecture(space: SearchSpace, arch: Architecture) -> None:
    assert isinstance(hash(arch), int), (
        "choices must be hashable: use strings and numbers as options"
    )
    assert space.architecture(arch.as_dict()) == arch, "build must make the same choices again"
    built = ReplayChooser(arch.as_dict())
    try:
        space._built(built)
    except InputError as error:
        raise AssertionError(f"ask must make the choices of build: {error}") from error
    assert tuple(built.choices.items()) == arch.choices, (
        "ask must make the choices of build, in the same order"
    )
    assert space.parse(space.format(arch)) == arch, (
        f"parse(format(arch)) must equal arch: {space.format(arch)}"
    )


def _check_network(space: SearchSpace, arch: Architecture) -> None:
    # 1. Model and text are valid, and express the same network.
    model = space.to_onnx(arch)
    text = space.to_text(arch)
    data = model.SerializeToString()
    onnx.checker.check_model(data, full_check=True)
    onnx.checker.check_model(onnx.parser.parse_model(text))
    read = from_model(model)
    rebuilt = from_model(from_text(text))
    assert write(compact(read)) == text, (
        "the text of the ONNX model must equal the text of the architecture"
    )
    assert write(compact(rebuilt)) == text, "text → model → text must be a fixed point"
    # 2. So do their costs.
    costs = {(graph_params(graph), graph_flops(graph)) for graph in (read, rebuilt)}
    assert costs == {(space.params(arch), space.flops(arch))}, (
        "params and FLOPs must survive text → model"
    )
    # 3. The network has logits, and runs.
    dims = model.graph.output[0].type.tensor_type.shape.dim
    shape = tuple([dim.dim_value or dim.dim_param for dim in dims])
    if not isinstance(space, TorchSpace):
        logits = ("N", space.num_classes)
        assert shape == logits, f"build must return logits (N, {space.num_classes}), not {shape}"
    _check_run(data, space, shape)


def _check_run(model: bytes, space: SearchSpace, shape: tuple[int | str, ...]) -> None:
    try:
        import onnxruntime
    except ImportError:  # optional: this package needs onnx only
        return
    options = onnxruntime.SessionOptions()
    # Optimizing takes longer than a run.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    batch = 2 if "N" in shape else 1
    if isinstance(space, TorchSpace):
        inputs = space.example_arrays()
        if "N" in shape:
            inputs = {name: x[:1].repeat(batch, 0) for name, x in inputs.items()}
    else:
        first = session.get_inputs()[0]  # the input size may be a choice of the architecture
        x = np.random.default_rng(0).standard_normal((batch, *first.shape[1:]))
        inputs = {first.name: x.astype(np.float32)}
    output = session.run(None, inputs)[0]
    expected = tuple([batch if size == "N" else size for size in shape])
    assert output.shape == expected, (
        f"the model gives {output.shape}, not {expected}, for a batch of {batch}"
    )
    assert np.isfinite(output).all(), "the untrained model gives NaN or infinite outputs"


def _check_variation(
    space: SearchSpace, archs: list[Architecture], rng: np.random.Generator
) -> None:
    for a, b in pairwise(archs):
        mutant = space.mutate(a, rng)
        assert space.size == 1 or mutant != a, f"mutate must change something in {a}"
        assert space.architecture(mutant.as_dict()) == mutant, "mutate must stay in the space"
        child = space.crossover(a, b, rng)
        assert space.architecture(child.as_dict()) == child, "crossover must stay in the space"
        assert space.crossover(a, a, rng) == a, (
            "crossover of an architecture with itself must return it"
        )
