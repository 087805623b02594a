"""Parts of random networks, in a random style: convolutions by recipes, blocks, stems, heads and
mixers of tokens.
"""

from __future__ import annotations

from math import gcd

from experiments.pretraining.draws import Draw
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.graph import Attrs
from search_spaces.ir.standard import shortest

# --- what there is

# Each word of a recipe is one step. A convolution is written as its kernel (k: the block's) and its
# output channels (=: as the input, o: the block's, i: narrower, e: expanded), and then s: strided,
# d: depthwise, g: grouped, 2: dilated, r: one row, c: one column, -: no activation. The other steps
# are M: pooling, S: channel shuffle, P: patches. A leading "+" stands for a residual connection.
RECIPES = {
    "conv": "kosg",
    "dil": "kos2",
    "double": "kosg kog",
    "separable": "k=sd- 1o",
    "dilsep": "k=sd2- 1o",
    "depthwise": "k=sd 1o-",
    "line": "kosr- koc",
    "neck": "1i kisg 1o-",
    "wide": "1e kesd 1o-",
    "shuffle": "1ig S kisd 1o-",
    "residual": "+ kosg kog-",
    "bottleneck": "+ 1i kisg 1o-",
    "inverted": "+ 1e kesd 1o-",
    "fused": "+ kes 1o-",
    "next": "+ k=sd- 1e 1o-",
    "cheap": "+ 1is kod-",
}
BLOCKS = [*RECIPES, "dense", "inception", "split", "skip"]

# Operations of cells: a kind and the size of its kernel.
_SIZED_KINDS = ("conv", "dil", "separable", "depthwise", "line", "dilsep")
SIZED = [f"{kind}_{kernel}" for kind in _SIZED_KINDS for kernel in (3, 5)]
OPERATIONS = [
    *("skip", "none", "act", "se", "gate", "global"),
    *("conv_1", "conv_7", "line_7"),
    *SIZED,
    *("avg_3", "avg_5", "max_3", "max_5", "max_7"),
    *("neck_3", "neck_5", "wide_3", "wide_5", "shuffle_3", "double_3", "group_3"),
]
MIXERS = ("attention", "shared", "mlp", "pool", "gated")

# What a style draws from; repeated options are likelier.
ACTIVATIONS = (
    *("Relu", "Relu", "Relu", "relu6", "HardSwish", "Gelu"),
    *("silu", "Elu", "LeakyRelu", "Tanh", "Mish", "Selu"),
)
ORDERS = (
    *("conv norm act", "conv norm act", "conv norm act"),
    *("act conv norm", "act conv norm", "norm act conv", "conv act norm"),
)
NORMS = (*["batch"] * 7, "plain", "group", "instance", "none")
HEADS = ("plain", "plain", "plain", "wide", "hidden", "max", "normal", "both")
DOWNS = (
    *("conv", "conv", "avg", "max", "residual"),
    *("inception", "space", "inside", "inside"),
)
STEMS = {  # by their stride
    1: ("3o", "5o", "3o 3o", "1o"),
    2: ("3os", "5os", "2P", "3o M"),
    4: ("7os M", "4P", "3os 3os"),
}


def _stem_strides(size: int) -> tuple[int, ...]:
    """Strides that suit an image of `size` rows."""
    if size > 100:
        return (2, 4)
    if size > 40:
        return (1, 2, 4)
    return (1, 1, 1, 2) if size > 16 else (1,)


class Style:
    """The style of a space's networks.

    Order of convolution, normalization and activation; their kinds; stem, head, downsampling.
    """

    def __init__(self, draw: Draw, size: int) -> None:
        self.order = draw.one(*ORDERS)
        self.activation = draw.one(*ACTIVATIONS)
        self.norm = draw.one(*NORMS)
        stride = draw.one(*_stem_strides(size))
        self.stem = draw.one(*STEMS[stride])
        self.head = draw.one(*HEADS)
        self.down = draw.one(*DOWNS)
        self.shortcut = draw.chance(0.6)  # residual connections where the shape changes


class Maker:
    """Builds parts of a network in a style."""

    def __init__(self, net: Network, style: Style, activation: str | None = None) -> None:
        self.net = net
        self.style = style
        self.activation = activation or style.activation

    # --- activation, normalization, convolution, pooling

    def activate(self, x: Tensor, kind: str | None = None) -> Tensor:
        kind = kind or self.activation
        if kind == "relu6":
            return self.net.relu6(x)
        if kind == "silu":
            return self.net.mul(x, self.net.sigmoid(x))
        return self.net.op(kind, x)

    def normalize(self, x: Tensor, kind: str | None = None) -> Tensor:
        kind = kind or self.style.norm
        if kind in ("batch", "plain"):
            return self.net.batch_norm(x, affine=kind == "batch")
        if kind == "group":
            groups = gcd(channels_of(x), 4)
            return self.net.op("GroupNormalization", x, attrs=(("num_groups", groups),))
        operators = {
            "instance": "InstanceNormalization",
            "layer": "LayerNormalization",
            "rms": "RMSNormalization",
        }
        return self.net.op(operators[kind], x) if kind in operators else x

    def unit(
        self,
        x: Tensor,
        channels: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        active: bool = True,
    ) -> Tensor:
        """A convolution with normalization and, if `active`, activation, in the style's order.

        On the network's input the convolution is always first.
        """
        groups = gcd(groups, gcd(channels, channels_of(x)))
        order = self.style.order if x.number else "conv norm act"
        for step in order.split():
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
        """x after pooling; x itself if it has one row."""
        if size_of(x) == 1:
            return x
        pool = self.net.avg_pool if kind == "avg" else self.net.max_pool
        has_rest = kernel == 2 and size_of(x) % 2 == 1
        return pool(x, kernel, stride=stride, ceil=has_rest)

    def fit(self, x: Tensor, channels: int, stride: int = 1) -> Tensor:
        """Pool and project x to the stride and channels; x itself if it already fits."""
        if stride > 1:
            x = self.pooled(x)
        return x if channels_of(x) == channels else self.unit(x, channels, active=False)

    # --- blocks

    def run(
        self,
        recipe: str,
        x: Tensor,
        widths: dict[str, int],
        kernel: int = 3,
        stride: int = 2,
        groups: int = 1,
    ) -> Tensor:
        """Apply one of `RECIPES` or `STEMS`.

        Args:
            recipe: its steps, without the residual connection.
            x: an image.
            widths: channels of the letters o, i and e.
            kernel: of the steps "k".
            stride: of the steps "s".
            groups: of the steps "g".
        """
        for step in recipe.removeprefix("+").split():
            if step == "M":
                x = self.net.max_pool(x, 3, stride=2)
            elif step == "S":
                x = self.net.channel_shuffle(x, gcd(2, channels_of(x)))
            elif step[1] == "P":
                side = int(step[0])
                patches = self.net.conv(
                    x, widths["o"], side, stride=side, bias=True, pads=(0, 0, 0, 0)
                )
                x = self.normalize(patches)
            else:
                x = self._convolve(step, x, widths, kernel, stride, groups)
        return x

    def _convolve(
        self, step: str, x: Tensor, widths: dict[str, int], kernel: int, stride: int, groups: int
    ) -> Tensor:
        """One convolution of a recipe."""
        inputs = channels_of(x)
        side = kernel if step[0] == "k" else int(step[0])
        shape: int | tuple[int, int] = side
        if "r" in step:
            shape = (1, side)
        elif "c" in step:
            shape = (side, 1)
        if "d" in step:
            groups = inputs
        elif "g" not in step:
            groups = 1
        return self.unit(
            x,
            channels=widths.get(step[1], inputs),
            kernel=shape,
            stride=stride if "s" in step else 1,
            dilation=2 if "2" in step else 1,
            groups=groups,
            active="-" not in step,
        )

    def block(
        self,
        kind: str,
        x: Tensor,
        channels: int,
        stride: int = 1,
        kernel: int = 3,
        ratio: float = 2,
        groups: int = 1,
        se: bool = False,
    ) -> Tensor:
        """One of `BLOCKS` or `OPERATIONS`.

        Args:
            kind: its name; that of an operation contains its kernel.
            x: an image.
            channels: of the result.
            stride: 1 or 2.
            kernel: of a block.
            ratio: of inner and outer widths.
            groups: of grouped convolutions.
            se: whether squeeze and excitation follows.
        """
        kind, _, size = kind.partition("_")
        if size:
            kernel = int(size)
        if kind == "group":
            kind = "conv"
            groups = 4
        y = self._plain_block(kind, x, channels, stride, kernel, ratio, groups)
        if se and kind != "skip":
            y = self.net.squeeze_excite(y, max(2, channels // 8))
        is_residual = RECIPES.get(kind, "").startswith("+")
        if is_residual and (x.shape == y.shape or self.style.shortcut):
            return self.net.add(y, self.fit(x, channels, stride))
        return y

    def _plain_block(
        self,
        kind: str,
        x: Tensor,
        channels: int,
        stride: int,
        kernel: int,
        ratio: float,
        groups: int,
    ) -> Tensor:
        """A block without its residual connection."""
        inner = max(4, int(channels / ratio))
        if kind in RECIPES:
            widths = {"o": channels, "i": inner, "e": int(channels_of(x) * ratio)}
            return self.run(RECIPES[kind], x, widths, kernel, stride, groups)
        if kind == "dense":
            x = self.fit(x, channels, stride)
            grown = self.unit(self.unit(x, inner), inner, kernel)
            return self.net.concat(x, grown)
        if kind == "inception":
            pointwise = self.unit(x, inner, 1, stride)
            spatial = self.unit(self.unit(x, inner), inner, kernel, stride)
            pooled = self.pooled(x, "max", 3, stride)
            return self.fit(self.net.concat(pointwise, spatial, pooled), channels)
        if kind in ("avg", "max"):
            return self.fit(self.pooled(x, kind, kernel, stride), channels)
        return self._same_shape(kind, self.fit(x, channels, stride), kernel)

    def _same_shape(self, kind: str, x: Tensor, kernel: int) -> Tensor:
        """An operation that keeps the shape."""
        net = self.net
        channels = channels_of(x)
        if kind == "split" and channels % 2 == 0:
            half = channels // 2
            changed = self.unit(net.slice(x, 1, half, channels), half, kernel)
            kept = net.slice(x, 1, 0, half)
            return net.channel_shuffle(net.concat(kept, changed), 2)
        if kind == "gate":
            return net.mul(x, net.sigmoid(net.conv(x, kernel=kernel, groups=channels)))
        if kind == "global":
            return net.add(x, net.conv(net.global_avg_pool(x), kernel=1, bias=True))
        if kind == "se":
            return net.squeeze_excite(x, max(2, channels // 4), gate="sigmoid")
        if kind == "none":
            return net.zero(x)
        return self.activate(x) if kind == "act" else x

    # --- between stages, and the end

    def down(self, x: Tensor, channels: int) -> Tensor:
        """Halve the size and change the channels."""
        kind = self.style.down
        if kind != "space":
            return self.block(kind, x, channels, 2)
        if size_of(x) % 2:
            return self.block("conv", x, channels, 2)
        packed = self.net.op("SpaceToDepth", x, attrs=(("blocksize", 2),))
        return self.unit(packed, channels)

    def head(self, x: Tensor) -> Tensor:
        """Logits of an image."""
        net = self.net
        kind = self.style.head
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

    # --- tokens

    def tokens(self, x: Tensor, width: int, patch: int) -> Tensor:
        """Split an image into patches, as tokens (N, tokens, width)."""
        x = self.net.conv(x, width, patch, stride=patch, pads=(0, 0, 0, 0), bias=True)
        count = size_of(x) ** 2 if size_of(x) > 1 else 0  # 0 keeps the number of channels
        x = self.net.op("Reshape", x, attrs=(("shape", (0, 0, count)),))
        return self._transposed(x, (0, 2, 1))

    def mixer(self, kind: str, x: Tensor, heads: int) -> Tensor:
        """Mix the tokens of x (N, tokens, channels)."""
        net = self.net
        width = size_of(x)
        if kind == "pool":
            return net.add(net.linear(x, width), net.op("ReduceMean", x, attrs=(("axes", (1,)),)))
        if kind in ("mlp", "gated"):
            tokens = channels_of(x)
            y = self._transposed(x, (0, 2, 1))
            if kind == "mlp":
                y = net.op("Gelu", net.linear(y, 2 * tokens))
            y = self._transposed(net.linear(y, tokens), (0, 2, 1))
            if kind == "mlp":
                return y
            return net.linear(net.mul(net.linear(x, width), y), width)
        return self._attention(x, gcd(heads, width), kind == "shared")

    def _attention(self, x: Tensor, heads: int, shares: bool) -> Tensor:
        """Self-attention; `shares`: all heads read the same keys and values."""
        net = self.net
        width = size_of(x)
        of_head = width // heads

        def split(number: int, perm: tuple[int, ...]) -> Tensor:
            shape: Attrs = (("shape", (0, 0, number, of_head)),)
            y = net.op("Reshape", net.linear(x, of_head * number), attrs=shape)
            return self._transposed(y, perm)

        sources = 1 if shares else heads
        queries = split(heads, (0, 2, 1, 3))  # (N, heads, tokens, of_head)
        keys = split(sources, (0, 2, 3, 1))  # (N, sources, of_head, tokens)
        values = split(sources, (0, 2, 1, 3))
        scale: Attrs = (("B", shortest(of_head**-0.5)),)
        products = net.op("Mul", net.op("MatMul", queries, keys), attrs=scale)
        y = net.op("MatMul", net.op("Softmax", products), values)
        y = self._transposed(y, (0, 2, 1, 3))
        return net.linear(net.op("Reshape", y, attrs=(("shape", (0, 0, width)),)), width)

    def _transposed(self, x: Tensor, perm: tuple[int, ...]) -> Tensor:
        return self.net.op("Transpose", x, attrs=(("perm", perm),))


def channels_of(x: Tensor) -> int:
    """Channels of an image, or number of tokens."""
    return int(x.shape[1])


def size_of(x: Tensor) -> int:
    """Rows of an image, or width of tokens."""
    return int(x.shape[2])
