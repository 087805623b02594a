"""Parts of random networks: convolutions by recipes, blocks, stems, heads and mixers of tokens, in
a random style.
"""

from __future__ import annotations

from math import gcd

from experiments.pretraining.draws import Draw
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.graph import Attrs
from search_spaces.ir.standard import shortest

# Each word is a convolution: kernel (k: the block's), output channels (=: as the input, o: the
# block's, i: narrower, e: expanded), then s: strided, d: depthwise, g: grouped, 2: dilated, r: one
# row, c: one column, -: no activation. M: pooling, S: channel shuffle, P: patches; a leading "+":
# residual.
RECIPES = {
    "conv": "kosg", "dil": "kos2", "double": "kosg kog", "separable": "k=sd- 1o", "dilsep": "k=sd2- 1o",
    "depthwise": "k=sd 1o-", "line": "kosr- koc", "neck": "1i kisg 1o-", "wide": "1e kesd 1o-",
    "shuffle": "1ig S kisd 1o-", "residual": "+ kosg kog-", "bottleneck": "+ 1i kisg 1o-",
    "inverted": "+ 1e kesd 1o-", "fused": "+ kes 1o-",
    "next": "+ k=sd- 1e 1o-", "cheap": "+ 1is kod-",
}  # fmt: skip
SIZED = [
    f"{kind}_{k}"
    for kind in ("conv", "dil", "separable", "depthwise", "line", "dilsep")
    for k in (3, 5)
]
OPERATIONS = [
    "skip",
    "none",
    "act",
    "se",
    "gate",
    "global",
    "conv_1",
    "conv_7",
    "line_7",
    *SIZED,
    "avg_3",
    "avg_5",
]
OPERATIONS += [
    "max_3",
    "max_5",
    "max_7",
    "neck_3",
    "neck_5",
    "wide_3",
    "wide_5",
    "shuffle_3",
    "double_3",
    "group_3",
]
BLOCKS = [*RECIPES, "dense", "inception", "split", "skip"]
MIXERS = ("attention", "shared", "mlp", "pool", "gated")
ACTIVATIONS = (
    "Relu",
    "Relu",
    "Relu",
    "relu6",
    "HardSwish",
    "Gelu",
    "silu",
    "Elu",
    "LeakyRelu",
    "Tanh",
    "Mish",
    "Selu",
)
STEMS = {
    1: ("3o", "5o", "3o 3o", "1o"),
    2: ("3os", "5os", "2P", "3o M"),
    4: ("7os M", "4P", "3os 3os"),
}


class Style:
    """The style of a space's networks: order of convolution, normalization and activation; stem,
    head, downsampling.
    """

    def __init__(self, draw: Draw, size: int) -> None:
        strides = (
            (2, 4)
            if size > 100
            else (1, 2, 4)
            if size > 40
            else (1, 1, 1, 2)
            if size > 16
            else (1,)
        )
        self.order = draw.one(
            *["conv norm act"] * 3, *["act conv norm"] * 2, "norm act conv", "conv act norm"
        )
        self.activation = draw.one(*ACTIVATIONS)
        self.norm = draw.one(*["batch"] * 7, "plain", "group", "instance", "none")
        self.stem = draw.one(*STEMS[draw.one(*strides)])
        self.head = draw.one("plain", "plain", "plain", "wide", "hidden", "max", "normal", "both")
        self.down = draw.one(
            "conv", "conv", "avg", "max", "residual", "inception", "space", "inside", "inside"
        )
        self.shortcut = draw.chance(0.6)


class Maker:
    """Builds parts of a network in a style."""

    def __init__(self, net: Network, style: Style, activation: str | None = None) -> None:
        self.net = net
        self.style = style
        self.activation = activation or style.activation

    def activate(self, x: Tensor, kind: str | None = None) -> Tensor:
        kind = kind or self.activation
        if kind == "relu6":
            return self.net.relu6(x)
        return self.net.mul(x, self.net.sigmoid(x)) if kind == "silu" else self.net.op(kind, x)

    def normalize(self, x: Tensor, kind: str | None = None) -> Tensor:
        kind = kind or self.style.norm
        if kind == "group":
            return self.net.op(
                "GroupNormalization", x, attrs=(("num_groups", gcd(channels_of(x), 4)),)
            )
        if kind in ("batch", "plain"):
            return self.net.batch_norm(x, affine=kind == "batch")
        operators = {
            "instance": "InstanceNormalization",
            "layer": "LayerNormalization",
            "rms": "RMSNormalization",
        }
        return self.net.op(operators[kind], x) if kind in operators else x

    def unit(
        self, x: Tensor, channels: int, kernel: int | tuple[int, int] = 1, stride: int = 1, dilation: int = 1,
        groups: int = 1, active: bool = True,
    ) -> Tensor:  # fmt: skip
        """A convolution with normalization and, if `active`, activation, in the style's order
        (fixed on the input).
        """
        groups = gcd(groups, gcd(channels, channels_of(x)))
        for step in (self.style.order if x.number else "conv norm act").split():
            if step == "conv":
                x = self.net.conv(
                    x,
                    channels,
                    kernel,
                    stride=stride,
                    dilation=dilation,
                    groups=groups,
                    bias=self.style.norm == "none",
                )
            elif step == "norm":
                x = self.normalize(x)
            elif active:
                x = self.activate(x)
        return x

    def pooled(self, x: Tensor, kind: str = "avg", kernel: int = 2, stride: int = 2) -> Tensor:
        pool = self.net.avg_pool if kind == "avg" else self.net.max_pool
        return (
            pool(x, kernel, stride=stride, ceil=kernel == 2 and size_of(x) % 2 == 1)
            if size_of(x) > 1
            else x
        )

    def fit(self, x: Tensor, channels: int, stride: int = 1) -> Tensor:
        """Pool and project x to the stride and channels; x itself if it already fits."""
        x = self.pooled(x) if stride > 1 else x
        return x if channels_of(x) == channels else self.unit(x, channels, active=False)

    def run(
        self,
        recipe: str,
        x: Tensor,
        widths: dict[str, int],
        kernel: int = 3,
        stride: int = 2,
        by: int = 1,
    ) -> Tensor:
        """Apply one of `RECIPES` or `STEMS`."""
        for step in recipe.removeprefix("+").split():
            k = kernel if step[0] == "k" else 3 if step in "MS" else int(step[0])
            width = channels_of(x)
            if step == "M":
                x = self.net.max_pool(x, 3, stride=2)
            elif step == "S":
                x = self.net.channel_shuffle(x, gcd(2, width))
            elif step[1] == "P":
                x = self.normalize(
                    self.net.conv(x, widths["o"], k, stride=k, bias=True, pads=(0, 0, 0, 0))
                )
            else:
                shape = (1, k) if "r" in step else (k, 1) if "c" in step else k
                to = widths.get(step[1], width)
                groups = width if "d" in step else by if "g" in step else 1
                x = self.unit(
                    x,
                    to,
                    shape,
                    stride if "s" in step else 1,
                    1 + ("2" in step),
                    groups,
                    "-" not in step,
                )
        return x

    def block(
        self, kind: str, x: Tensor, channels: int, stride: int = 1, kernel: int = 3, ratio: float = 2, groups: int = 1,
        se: bool = False,
    ) -> Tensor:  # fmt: skip
        """One of `BLOCKS` or `OPERATIONS` (whose names contain the kernel). ratio: of inner and
        outer widths.
        """
        kind, _, size = kind.partition("_")
        k = int(size or kernel)
        inner = max(4, int(channels / ratio))
        net = self.net
        if kind == "group":
            kind, groups = "conv", 4
        if kind in RECIPES:
            widths = {"o": channels, "i": inner, "e": int(channels_of(x) * ratio)}
            y = self.run(RECIPES[kind], x, widths, k, stride, groups)
        elif kind == "dense":
            x = self.fit(x, channels, stride)
            y = net.concat(x, self.unit(self.unit(x, inner), inner, k))
        elif kind == "inception":
            branches = (
                self.unit(x, inner, 1, stride),
                self.unit(self.unit(x, inner), inner, k, stride),
            )
            y = self.fit(net.concat(*branches, self.pooled(x, "max", 3, stride)), channels)
        elif kind in ("avg", "max"):
            y = self.fit(self.pooled(x, kind, k, stride), channels)
        else:
            y = self._pointwise(kind, self.fit(x, channels, stride), k)
        y = net.squeeze_excite(y, max(2, channels // 8)) if se and kind != "skip" else y
        if not RECIPES.get(kind, "").startswith("+") or (
            x.shape != y.shape and not self.style.shortcut
        ):
            return y
        return net.add(y, self.fit(x, channels, stride))

    def _pointwise(self, kind: str, x: Tensor, k: int) -> Tensor:
        """An operation that keeps the shape."""
        net = self.net
        channels = channels_of(x)
        half = channels_of(x) // 2
        if kind == "split" and channels % 2 == 0:
            y = self.unit(net.slice(x, 1, half, channels), half, k)
            return net.channel_shuffle(net.concat(net.slice(x, 1, 0, half), y), 2)
        if kind == "gate":
            return net.mul(x, net.sigmoid(net.conv(x, kernel=k, groups=channels)))
        if kind == "global":
            return net.add(x, net.conv(net.global_avg_pool(x), kernel=1, bias=True))
        if kind == "se":
            return net.squeeze_excite(x, max(2, channels // 4), gate="sigmoid")
        return net.zero(x) if kind == "none" else self.activate(x) if kind == "act" else x

    def down(self, x: Tensor, channels: int) -> Tensor:
        """Halve the size and change the channels."""
        if self.style.down == "space" and size_of(x) % 2 == 0:
            return self.unit(self.net.op("SpaceToDepth", x, attrs=(("blocksize", 2),)), channels)
        return self.block("conv" if self.style.down == "space" else self.style.down, x, channels, 2)

    def head(self, x: Tensor) -> Tensor:
        net, kind = self.net, self.style.head
        if kind == "wide":
            x = self.unit(x, 2 * channels_of(x))
        if kind == "normal" or self.style.order == "act conv norm":
            x = self.activate(self.normalize(x))
        if kind not in ("hidden", "max", "both"):
            return net.classifier(x)
        mean = net.op("Flatten", net.global_avg_pool(x))
        top = net.op("Flatten", net.op("GlobalMaxPool", x))
        if kind == "hidden":
            return net.linear(self.activate(net.linear(mean, 64)), net.num_classes)
        return net.linear(net.concat(mean, top) if kind == "both" else top, net.num_classes)

    def mixer(self, kind: str, x: Tensor, heads: int) -> Tensor:
        """Mix the tokens of x (N, tokens, channels)."""
        net = self.net
        tokens = channels_of(x)
        width = size_of(x)
        if kind in ("mlp", "gated"):
            y = net.op("Transpose", x, attrs=(("perm", (0, 2, 1)),))
            y = net.linear(
                net.op("Gelu", net.linear(y, 2 * tokens)) if kind == "mlp" else y, tokens
            )
            y = net.op("Transpose", y, attrs=(("perm", (0, 2, 1)),))
            return y if kind == "mlp" else net.linear(net.mul(net.linear(x, width), y), width)
        if kind == "pool":
            return net.add(net.linear(x, width), net.op("ReduceMean", x, attrs=(("axes", (1,)),)))
        heads = gcd(heads, width)

        def split(number: int, perm: tuple[int, ...]) -> Tensor:
            shape: Attrs = (("shape", (0, 0, number, width // heads)),)
            y = net.op("Reshape", net.linear(x, width // heads * number), attrs=shape)
            return net.op("Transpose", y, attrs=(("perm", perm),))

        shared = heads if kind == "attention" else 1
        queries = split(heads, (0, 2, 1, 3))
        keys = split(shared, (0, 2, 3, 1))
        values = split(shared, (0, 2, 1, 3))
        products = net.op(
            "Mul",
            net.op("MatMul", queries, keys),
            attrs=(("B", shortest((width // heads) ** -0.5)),),
        )
        y = net.op("MatMul", net.op("Softmax", products), values)
        y = net.op("Transpose", y, attrs=(("perm", (0, 2, 1, 3)),))
        return net.linear(net.op("Reshape", y, attrs=(("shape", (0, 0, width)),)), width)

    def tokens(self, x: Tensor, width: int, patch: int) -> Tensor:
        """Split an image into patches, as tokens (N, tokens, width)."""
        x = self.net.conv(x, width, patch, stride=patch, pads=(0, 0, 0, 0), bias=True)
        x = self.net.op(
            "Reshape", x, attrs=(("shape", (0, 0, size_of(x) ** 2 if size_of(x) > 1 else 0)),)
        )
        return self.net.op("Transpose", x, attrs=(("perm", (0, 2, 1)),))


def channels_of(x: Tensor) -> int:
    """Channels of an image, or number of tokens."""
    return int(x.shape[1])


def size_of(x: Tensor) -> int:
    """Rows of an image, or width of tokens."""
    return int(x.shape[2])
