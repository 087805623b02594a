"""Small networks of timm, torchvision, transformers and PyTorch, with trained-looking weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.common.torchvision import prepare_torchvision

Built = tuple[nn.Module, Any]


def settled(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with statistics and scales of normalizations as after a training, instead of zeros
    and ones.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in module.modules():
            if (
                isinstance(layer, nn.modules.batchnorm._BatchNorm)
                and layer.running_mean is not None
                and layer.running_var is not None
            ):
                layer.running_mean.copy_(
                    0.2 * torch.randn(layer.running_mean.shape, generator=generator)
                )
                layer.running_var.copy_(
                    0.5 + torch.rand(layer.running_var.shape, generator=generator)
                )
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.copy_(parameter + 0.3 * torch.randn(parameter.shape, generator=generator))
            elif not parameter.any():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def library(name: str) -> Any:
    """A library of networks; torchvision needs a preparation on some machines."""
    prepare_torchvision()
    return importlib.import_module(name)


def timm_network(name: str, size: int = 32, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        return settled(library("timm").create_model(name, num_classes=10, **options)), torch.randn(
            2, 3, size, size
        )

    return build


def torchvision_network(name: str, size: int = 32, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        made = library("torchvision").models.get_model(name, num_classes=10, **options)
        return settled(made), torch.randn(2, 3, size, size)

    return build


def transformers_network(name: str, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        network = getattr(library("transformers"), name)
        config = network.config_class(vocab_size=100, attn_implementation="eager", **options)
        module = settled(network(config))
        example = {"input_ids": torch.randint(0, 100, (2, 12))}
        if config.is_encoder_decoder:
            example["decoder_input_ids"] = torch.randint(0, 100, (2, 4))
        return module, example

    return build


class UNet(nn.Module):
    """Two scales, joined by a concatenation."""

    def __init__(self) -> None:
        super().__init__()

        def double(inputs: int, outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for channels in (inputs, outputs):
                layers += [
                    nn.Conv2d(channels, outputs, 3, padding=1),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                ]
            return nn.Sequential(*layers)

        self.down1, self.down2, self.bottom = double(3, 16), double(16, 32), double(32, 48)
        self.up2, self.up1 = (
            nn.ConvTranspose2d(48, 32, 2, stride=2),
            nn.ConvTranspose2d(32, 16, 2, stride=2),
        )
        self.left2, self.left1 = double(64, 32), double(32, 16)
        self.head = nn.Conv2d(16, 4, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.up2(self.bottom(self.pool(second)))
        x = self.left2(torch.cat([x, second], 1))
        x = self.left1(torch.cat([self.up1(x), first], 1))
        return self.head(x)


class Words(nn.Module):
    """Embedding, recurrent layers and a classifier."""

    def __init__(self, kind: str, bidirectional: bool = False, layers: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.recurrent = getattr(nn, kind)(
            24, 32, layers, batch_first=True, bidirectional=bidirectional
        )
        self.hidden = nn.Linear(32 * (1 + bidirectional), 48)
        self.head = nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.recurrent(self.words(ids))
        return self.head(self.hidden(states[:, -1]).relu())


class LastStates(nn.Module):
    """A classifier of the last states of both directions, as is usual: several outputs of a layer are
    read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 32, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(64, 5)

    def forward(self, ids: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.words(ids))
        return self.head(torch.cat([hidden[-2], hidden[-1]], 1))


class Causal(nn.Module):
    """A block of a small GPT that computes the width of a head from the number of channels."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_embd, self.n_head = width, heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, channels = x.size()
        q, k, v = self.c_attn(self.norm1(x)).split(self.n_embd, dim=2)
        q, k, v = (
            y.view(batch, length, self.n_head, channels // self.n_head).transpose(1, 2)
            for y in (q, k, v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, channels))
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):
    """Two such blocks; the embedding is the head's weight, too."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(7, width)
        self.blocks = nn.ModuleList([Causal(width, 4) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Plain(nn.Module):
    """Convolutions and a linear layer after flattening."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, groups=4, padding=1), nn.GELU(),
            nn.GroupNorm(8, 32), nn.Conv2d(32, 32, 7, padding=3, groups=32), nn.PReLU(32),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 8 * 8, 40), nn.ReLU(), nn.Linear(40, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def own_network(make: Callable[[], nn.Module], example: Callable[[], Any]) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        return settled(make()), example()

    return build


def _ids() -> Tensor:
    return torch.randint(0, 50, (2, 7))


def _image() -> Tensor:
    return torch.randn(2, 3, 16, 16)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(nn.Linear(12, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 5))


def _segformer() -> nn.Module:
    transformers = library("transformers")
    config = transformers.SegformerConfig(
        hidden_sizes=[16, 32, 32, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
    )
    return transformers.SegformerForSemanticSegmentation(config)


def _standardized() -> nn.Module:
    layers, resnetv2 = library("timm.layers"), library("timm.models.resnetv2")
    norm = partial(layers.GroupNormAct, num_groups=8)
    return resnetv2.ResNetV2(
        (1, 2), (32, 64), num_classes=10, stem_chs=16, conv_layer=layers.StdConv2d, norm_layer=norm
    )


_BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2}
NETWORKS: dict[str, Callable[[], Built]] = {
    "plain": own_network(Plain, _image),
    "u-net": own_network(UNet, _image),
    "lstm": own_network(lambda: Words("LSTM", bidirectional=True), _ids),
    "gru": own_network(lambda: Words("GRU", layers=2), _ids),
    "last states": own_network(LastStates, _ids),
    "small gpt": own_network(SmallGPT, _ids),
    "encoder": own_network(_encoder, lambda: torch.randn(2, 6, 12)),
    "resnet": timm_network("resnet18"),
    "resnext": timm_network("resnext26ts", 64),
    "mobilenetv2": timm_network("mobilenetv2_050"),
    "mobilenetv3": timm_network("mobilenetv3_small_050"),
    "efficientnet": timm_network("efficientnet_lite0"),
    "convnext": timm_network("convnext_atto", 64),
    "convnextv2": timm_network("convnextv2_atto", 64),
    "vit": timm_network("vit_tiny_patch16_224", img_size=32, depth=3),
    "swin": timm_network(
        "swin_tiny_patch4_window7_224",
        56,
        img_size=56,
        depths=(2, 2),
        num_heads=(2, 4),
        embed_dim=32,
    ),
    "mixer": own_network(
        lambda: library("timm.models.mlp_mixer").MlpMixer(
            10, 32, patch_size=8, num_blocks=2, embed_dim=48
        ),
        lambda: torch.randn(2, 3, 32, 32),
    ),
    "xcit": own_network(
        lambda: library("timm.models.xcit").Xcit(
            32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=10
        ),
        lambda: torch.randn(2, 3, 32, 32),
    ),
    "regnet": timm_network("regnetx_002"),
    "densenet": timm_network("densenet121", 64, block_config=(2, 2), growth_rate=16),
    "weight standardization": own_network(_standardized, lambda: torch.randn(2, 3, 32, 32)),
    "shufflenet": torchvision_network("shufflenet_v2_x0_5"),
    "torchvision vit": own_network(
        lambda: library("torchvision").models.VisionTransformer(
            32, 8, 2, 4, 32, 64, num_classes=10
        ),
        lambda: torch.randn(2, 3, 32, 32),
    ),
    "torchvision swin": own_network(
        lambda: library("torchvision").models.SwinTransformer(
            [4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10
        ),
        lambda: torch.randn(2, 3, 32, 32),
    ),
    "bert": transformers_network("BertForSequenceClassification", **_BERT),
    "gpt2": transformers_network("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4),
    "llama": transformers_network("LlamaForCausalLM", **_LLAMA),
    "albert": transformers_network("AlbertModel", embedding_size=16, **_BERT),
    "t5": transformers_network(
        "T5ForConditionalGeneration", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    ),
    "segformer": own_network(_segformer, lambda: {"pixel_values": torch.randn(2, 3, 32, 32)}),
    "distilbert": transformers_network(
        "DistilBertForMaskedLM", dim=32, n_layers=2, n_heads=4, hidden_dim=64
    ),
}
