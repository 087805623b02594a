"""Zero-cost proxies: scores of an untrained network that correlate with its trained accuracy.
Higher is better.

They need no data set: the batch is synthetic images with arbitrary labels. The definitions follow
NAS-Bench-Suite-Zero (arXiv 2210.03230); `python -m tests.stress.proxies` measures the rank
correlation with its published values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.evaluation.module import GraphModule, memory_format_of
from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.graph import Graph

PROXIES = (
    "epe_nas",
    "fisher",
    "grad_norm",
    "grasp",
    "jacov",
    "l2_norm",
    "nwot",
    "plain",
    "snip",
    "synflow",
    "zen",
)
BATCH_SIZE = 32  # images

_OF_JACOBIAN = {"epe_nas", "jacov"}
_OF_LOSS = {"fisher", "grad_norm", "grasp", "plain", "snip"}
_Kernel = nn.Conv2d | nn.Linear
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_RECTIFIERS = {"Clip", "ConvBnRelu6", "Gelu", "HardSwish", "LeakyRelu", "Relu"}
# Of the dead-leaves images: layers, and disc radii relative to the image
_LEAVES, _RADII = 15, (0.1, 0.5)
_JITTER = 1e-5  # keeps logarithms of correlations finite


def compute_proxies(
    graph: Graph, seed: int = 0, names: Collection[str] = PROXIES, batch: int = BATCH_SIZE
) -> dict[str, float]:
    """Compute proxies of one untrained network.

    - epe_nas (arXiv 2102.08099), jacov (2006.04647v1): how little the Jacobians of different inputs
      correlate, within classes and over the whole batch; jacov is minus the logarithm of the
      published score.
    - nwot (2006.04647v3): how much the activation patterns of rectified units differ between
      inputs. A unit counts once per operator that reads it, so that one activation shared by
      several convolutions counts as several.
    - snip (1810.02340), grad_norm, fisher (1906.04113): saliency of weights, gradients and
      channels; as logarithms.
    - plain: the sum of weight · gradient. It is zero up to rounding wherever batch normalization
      follows.
    - grasp (2002.07376): minus weight · Hessian · gradient, as sign(v) · log(1 + |v|).
    - synflow (2006.05467): flow through absolute weights without batch normalization; as a
      logarithm.
    - zen (2102.01063): sensitivity of the last feature map to input noise, with Gaussian weights;
      as a logarithm.
    - l2_norm: sum of the norms of all kernels.

    Logarithms are natural. Values depend on `batch`: compare only values with equal batches.

    Args:
        graph: the network, with one input of known size.
        seed: draws weights and images.
        names: proxies to compute. A value does not depend on the other names.
        batch: number of images, at least 2. Fewer need less memory and give noisier values.

    Returns:
        One value per name; NaN if it is undefined, for example for a network whose output ignores
        its input.

    Raises:
        InputError: a name is unknown, the input size is not known, or PyTorch lacks an operator.
    """
    for name in names:
        if name not in PROXIES:
            raise unknown("proxy", name, PROXIES)
    if batch < 2:
        raise InputError(
            f"batch = {batch} is too small: proxies compare the images of a batch, give 2 or more"
        )
    requested = set(names)
    shape = _input_shape(graph)
    values = dict.fromkeys(names, math.nan)
    with torch.random.fork_rng(devices=[]):
        if requested - {"synflow", "zen"}:
            values |= _of_batch(_network(graph, seed), _images(batch, shape, seed), requested)
        if "synflow" in requested:
            values["synflow"] = _synflow(_network(graph, seed), shape)
        if "zen" in requested:
            values["zen"] = _zen(_network(graph, seed), torch.randn(batch, *shape))
    return {name: values[name] if math.isfinite(values[name]) else math.nan for name in names}


def _network(graph: Graph, seed: int) -> GraphModule:
    torch.manual_seed(seed)
    network = GraphModule(graph).train()
    return network.to(memory_format=memory_format_of(graph))  # type: ignore[call-overload]


def _log(value: float) -> float:
    return math.log(value) if 0 < value < math.inf else math.nan


# --- images


def _input_shape(graph: Graph) -> tuple[int, ...]:
    """Shape of one input, without the batch."""
    dims = graph.shapes[graph.inputs[0]][1:]
    shape = tuple(d for d in dims if isinstance(d, int))
    if len(graph.inputs) != 1 or len(shape) < len(dims):
        raise InputError(
            "proxies need a network with one input of known size: fix the model's input size"
        )
    return shape


@lru_cache(maxsize=4)
def _images(count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Dead leaves (arXiv 2106.05963): overlapping discs of random colours and of all scales.

    Their edges, uniform areas and long-range correlations resemble photographs more than noise
    does. Channels have mean 0 and standard deviation 1. Inputs other than images are Gaussian
    noise.
    """
    generator = torch.Generator().manual_seed(seed)
    if len(shape) != 3:
        return torch.randn(count, *shape, generator=generator)
    channels, height, width = shape

    # 1. The number of the uppermost disc at each pixel; 0 is the ground.
    rows = torch.arange(height) / height
    columns = torch.arange(width) / width
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    top = torch.zeros(count, height, width, dtype=torch.long)  # (count, H, W)
    smallest, largest = _RADII
    for leaf in range(1, _LEAVES):
        u, centre_y, centre_x = torch.rand(3, count, 1, 1, generator=generator)
        squared_radius = 1 / ((1 - u) / smallest**2 + u / largest**2)
        squared_distance = (y - centre_y) ** 2 + (x - centre_x) ** 2
        top[squared_distance < squared_radius] = leaf

    # 2. Its colour.
    colours = torch.randn(count, _LEAVES, channels, generator=generator)
    image = torch.arange(count)[:, None, None]
    images = colours[image, top].permute(0, 3, 1, 2)  # (count, channels, H, W)

    # 3. Channels with mean 0 and standard deviation 1.
    std, mean = torch.std_mean(images, dim=(0, 2, 3), keepdim=True)
    return (images - mean) / std


# --- one batch: a forward pass, a backward pass for the Jacobian and one for the loss


def _of_batch(net: GraphModule, images: Tensor, names: set[str]) -> dict[str, float]:
    """Proxies of one batch; none if the network's output ignores its input."""
    # 1. The forward pass, which records what the proxies need.
    layers = [m for m in net.modules() if isinstance(m, _Kernel)]
    agreements = _record_agreements(net) if "nwot" in names else []
    outputs = _record_outputs(layers) if "fisher" in names else []
    x = images.detach().requires_grad_()
    logits = net(x).flatten(1)
    if torch.allclose(logits, logits[:1]):
        return {}

    # 2. At least three images per class, because epe_nas compares the images of one class.
    labels = torch.arange(len(x)) % min(logits.shape[1], max(1, len(x) // 3))
    values = {"l2_norm": sum(float(m.weight.detach().norm()) for m in layers)}
    if "nwot" in names:
        values["nwot"] = _nwot(agreements)

    # 3. The backward passes.
    if names & _OF_JACOBIAN:
        jacobian = torch.autograd.grad(logits.sum(), x, retain_graph=True)[0]
        correlation = torch.corrcoef(jacobian.flatten(1).double())
        values |= {"jacov": _jacov(correlation), "epe_nas": _epe_nas(correlation, labels)}
    if names & _OF_LOSS and layers:
        loss = functional.cross_entropy(logits, labels)
        values |= _of_loss(loss, [m.weight for m in layers], outputs, grasp="grasp" in names)
    return values


def _record_agreements(net: GraphModule) -> list[Tensor]:
    """Record (batch, batch) agreements of each rectifier in the next forward pass.

    An entry is the number of units for which two images agree.
    """
    agreements: list[Tensor] = []
    readers = Counter(v for node in net.nodes for v in node.inputs)
    for node, layer in zip(net.nodes, net.layers, strict=True):
        if node.op in _RECTIFIERS:

            def record(
                _module: nn.Module,
                inputs: tuple[Tensor, ...],
                output: Tensor,
                weight: int,
                whole: bool,
            ) -> None:
                values = output if whole else inputs[0]
                is_on = values.detach() > 0
                on = is_on.flatten(1).float()  # (n, units)
                # Units that are on for both images of a pair, or off for both.
                both = (on @ on.T).double()  # (n, n)
                count = on.sum(1).double()  # (n,)
                units = on.shape[1]
                neither = units - count[:, None] - count + both
                agreements.append(weight * (both + neither))

            weight = max(1, readers[node.outputs[0]])
            whole = node.op == "ConvBnRelu6"
            layer.register_forward_hook(partial(record, weight=weight, whole=whole))
    return agreements


def _nwot(agreements: list[Tensor]) -> float:
    """Log determinant of the kernel of shared activation patterns."""
    if not agreements:
        return math.nan
    kernel = torch.stack(agreements).sum(0)  # (batch, batch)
    sign, log_determinant = torch.linalg.slogdet(kernel)
    return float(log_determinant) if sign > 0 else math.nan


def _jacov(correlation: Tensor) -> float:
    """How uncorrelated the Jacobians of the inputs are; the maximum is about -log(batch)."""
    if not torch.isfinite(correlation).all():
        return math.nan
    eigenvalues = torch.linalg.eigvalsh(correlation) + _JITTER
    return -_log(float((eigenvalues.log() + 1 / eigenvalues).sum()))


def _epe_nas(correlation: Tensor, labels: Tensor) -> float:
    """How uncorrelated the Jacobians of inputs of one class are, summed over classes."""
    logs = (correlation.abs() + _JITTER).log()  # (batch, batch)
    total = 0.0
    for label in labels.unique():
        is_member = labels == label
        total += abs(float(logs[is_member][:, is_member].sum()))
    return total


def _record_outputs(layers: list[_Kernel]) -> list[tuple[_Kernel, Tensor]]:
    """Record the layers' outputs in the next forward pass."""
    outputs: list[tuple[_Kernel, Tensor]] = []
    for layer in layers:
        layer.register_forward_hook(
            lambda module, _inputs, output: outputs.append((module, output))
        )
    return outputs


def _of_loss(
    loss: Tensor, weights: list[Tensor], outputs: list[tuple[_Kernel, Tensor]], *, grasp: bool
) -> dict[str, float]:
    """Proxies of the gradient of the loss, with respect to weights and to outputs of layers."""
    # 1. Gradients; those of grasp are differentiated once more.
    sources = [*weights, *(y for _, y in outputs)]
    derivatives = torch.autograd.grad(loss, sources, create_graph=grasp, allow_unused=True)
    pairs = [(w, g) for w, g in zip(weights, derivatives, strict=False) if g is not None]
    gradients = [(w.detach(), g.detach()) for w, g in pairs]

    # 2. Sums over all weights.
    values = {
        "grad_norm": _log(sum(float(g.norm()) for _, g in gradients)),
        "snip": _log(sum(float((w * g).abs().sum()) for w, g in gradients)),
        "plain": sum(float((w * g).sum()) for w, g in gradients),
    }

    # 3. Sums over the channels of layers.
    if outputs:
        fisher = 0.0
        of_outputs = derivatives[len(weights) :]
        for (layer, y), gradient in zip(outputs, of_outputs, strict=True):
            if gradient is not None:
                fisher += _fisher(layer, y.detach(), gradient.detach())
        values["fisher"] = _log(fisher)
    if grasp:
        values["grasp"] = _grasp(pairs)
    return values


def _fisher(layer: _Kernel, output: Tensor, gradient: Tensor) -> float:
    """Sum over channels of (Σ over positions of activation · gradient)² / 2.

    The sum is multiplied by the weights per channel.
    """
    by_channel = output * gradient
    if output.dim() > 2:
        axis = 1 if isinstance(layer, nn.Conv2d) else -1
        by_channel = by_channel.movedim(axis, 1).flatten(2).sum(2)  # (n, channels)
    return float(by_channel.square().mean(0).sum() / 2) * layer.weight[0].numel()


def _grasp(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Minus weight · Hessian · gradient, on a logarithmic scale.

    Weights and gradients are paired. The Hessian times a constant gradient is the gradient of its
    product with the gradient.
    """
    product = torch.stack([(g.detach() * g).sum() for _, g in pairs]).sum()
    weights = [w for w, _ in pairs]
    curved = torch.autograd.grad(product, weights, allow_unused=True)
    value = 0.0
    for weight, hessian_gradient in zip(weights, curved, strict=True):
        if hessian_gradient is not None:
            value -= float((weight.detach() * hessian_gradient).sum())
    return math.copysign(math.log1p(abs(value)), value)


# --- proxies with their own inputs and weights


def _synflow(net: GraphModule, shape: tuple[int, ...]) -> float:
    """Log of Σ weight · gradient with absolute weights and an all-one input.

    It is computed in double precision, since sums span 100 decades.
    """
    for name, module in list(net.named_modules()):
        if isinstance(module, _NORMS):
            net.set_submodule(name, nn.Identity())
    net.double()
    with torch.no_grad():
        for p in net.parameters():
            p.abs_()
    weights = [m.weight for m in net.modules() if isinstance(m, _Kernel)]
    total = net(torch.ones(1, *shape, dtype=torch.double)).sum()
    gradients = torch.autograd.grad(total, weights, allow_unused=True)
    flow = 0.0
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None:
            flow += float((weight.detach() * gradient).sum())
    return _log(flow)


@torch.no_grad()
def _zen(net: GraphModule, x: Tensor) -> float:
    """Log of the change of the last feature map under 1 % noise.

    It is the change as it would be without batch normalization. The result is corrected by the
    scale that each normalization removes, except in branches that carry only zeros.
    """
    scales: list[Tensor] = []
    for module in net.modules():
        if isinstance(module, _Kernel):
            nn.init.normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, _NORMS):
            module.register_forward_pre_hook(
                lambda _module, inputs: scales.append(
                    inputs[0].transpose(0, 1).flatten(1).var(1).mean().sqrt()
                )
            )
    features = _record_features(net)
    # Both go through in one batch, so that they are normalized equally.
    net(torch.cat([x, x + 0.01 * torch.randn_like(x)]))
    clean, disturbed = features[0].flatten(1).chunk(2)
    change = float((clean - disturbed).abs().sum(1).mean())
    return _log(change) + sum(math.log(s) for s in map(float, scales) if s > 0)


def _record_features(net: GraphModule) -> list[Tensor]:
    """Record the input of the last global pooling in the next forward pass.

    If there is no pooling, the logits are recorded.
    """
    features: list[Tensor] = []
    layers = zip(net.nodes, net.layers, strict=True)
    pools = [layer for node, layer in layers if node.op == "GlobalAveragePool"]
    if pools:
        pools[-1].register_forward_pre_hook(lambda _module, inputs: features.append(inputs[0]))
    else:
        net.register_forward_hook(lambda _module, _inputs, output: features.append(output))
    return features
