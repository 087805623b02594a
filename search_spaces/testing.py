"""`check_space`: the conformance suite that every search space must pass, a user's own included."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx

from search_spaces import (
    Architecture,
    SearchSpace,
    TorchSpace,
    compact,
    from_model,
    from_text,
    graph_flops,
    graph_params,
    write,
)
from search_spaces.choosers import ReplayChooser
from search_spaces.common.errors import InputError


def check_space(space: SearchSpace, count: int = 20, seed: int = 0) -> None:
    """Check `count` random architectures; AssertionError says what to change.

    Costs, ONNX models and text must be valid and agree; sampling, mutation and crossover must stay in the space and
    depend on the generator alone. Models are also run where onnxruntime is installed.
    """
    rng = np.random.default_rng(seed)
    archs = [space.sample(rng) for _ in range(count)]
    again = [space.sample(np.random.default_rng(seed)) for _ in range(2)]
    assert again[0] == again[1] == archs[0], "sample: the same generator must give the same architecture"
    for arch in archs:
        _check_architecture(space, arch)
        _check_network(space, arch)
    _check_variation(space, archs, rng)


def _check_architecture(space: SearchSpace, arch: Architecture) -> None:
    assert isinstance(hash(arch), int), "choices must be hashable: use strings and numbers as options"
    assert space.architecture(arch.as_dict()) == arch, "build must ask the same questions for the same choices"
    built = ReplayChooser(arch.as_dict())
    try:
        space._built(built)
    except InputError as error:
        raise AssertionError(f"ask must ask what build asks: {error}") from None
    assert tuple(built.choices.items()) == arch.choices, "ask must ask what build asks, in the same order"
    assert space.parse(space.format(arch)) == arch, f"parse(format(arch)) must give arch back: {space.format(arch)}"


def _check_network(space: SearchSpace, arch: Architecture) -> None:
    model, text = space.to_onnx(arch), space.to_text(arch)
    onnx.checker.check_model(model, full_check=True)
    onnx.checker.check_model(onnx.parser.parse_model(text))
    read, rebuilt = from_model(model), from_model(from_text(text))
    assert write(compact(read)) == text, "the text of the model must be the text of the architecture"
    assert write(compact(rebuilt)) == text, "text → model → text must be a fixed point"
    costs = {(graph_params(graph), graph_flops(graph)) for graph in (read, rebuilt)}
    assert costs == {(space.params(arch), space.flops(arch))}, "params and FLOPs must survive text → model"
    shape = tuple([d.dim_value or d.dim_param for d in model.graph.output[0].type.tensor_type.shape.dim])
    if not isinstance(space, TorchSpace):
        wanted = f"logits (N, {space.num_classes})"
        assert shape == ("N", space.num_classes), f"build must return {wanted}, not {shape}"
    _check_run(model, space, shape)


def _check_run(model: onnx.ModelProto, space: SearchSpace, shape: tuple[int | str, ...]) -> None:
    try:
        import onnxruntime
    except ImportError:  # this package needs onnx alone
        return
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    batch = 2 if "N" in shape else 1
    if isinstance(space, TorchSpace):
        inputs = {name: x[:1].repeat(batch, 0) if "N" in shape else x for name, x in space.example_arrays().items()}
    else:
        given = session.get_inputs()[0]  # its size may be one of the architecture's choices
        x = np.random.default_rng(0).standard_normal((batch, *given.shape[1:])).astype(np.float32)
        inputs = {given.name: x}
    output = session.run(None, inputs)[0]
    wanted = tuple([batch if size == "N" else size for size in shape])
    assert output.shape == wanted, f"the model gives {output.shape}, not {wanted}, for a batch of {batch}"
    assert np.isfinite(output).all(), "the untrained model gives NaN or infinite outputs"


def _check_variation(space: SearchSpace, archs: list[Architecture], rng: np.random.Generator) -> None:
    for a, b in pairwise(archs):
        mutant = space.mutate(a, rng)
        assert space.size == 1 or mutant != a, f"mutate must change something in {a}"
        assert space.architecture(mutant.as_dict()) == mutant, "mutate must stay in the space"
        child = space.crossover(a, b, rng)
        assert space.architecture(child.as_dict()) == child, "crossover must stay in the space"
        assert space.crossover(a, a, rng) == a, "crossover of an architecture with itself must give it back"
