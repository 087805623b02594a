"""Networks of timm, torchvision and transformers by name, without weights."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from search_spaces.common.errors import InputError, describe, unknown
from search_spaces.common.torchvision import prepare_torchvision
from search_spaces.ir.pytorch.modules import Example, without_weights

IMAGE_SIZE = 224  # pixels; default for networks that do not state a size
CLIP = (16, 112)  # frames, and pixels of a side, for torchvision's video networks
LARGE_CLIPS = frozenset({"mvit_v1_b", "mvit_v2_s", "s3d"})  # networks for clips of `IMAGE_SIZE`
TEXT_TOKENS = 128
AUDIO_SAMPLES = 16_000


def build(library: str, name: str, size: int | None = None) -> tuple[nn.Module, Example]:
    """Build a network in evaluation mode with weights on the meta device.

    Args:
        library: timm, torchvision or transformers.
        name: name of the network in the library; for transformers a class, built with its default
            configuration.
        size: pixels of an image's side, tokens of a text, or samples of a sound; None for the
            network's default.

    Returns:
        The network and an example input.

    Raises:
        InputError: if the library is not installed, has no such network, or cannot build it for
            that size.
    """
    make = LIBRARIES.get(library)
    if make is None:
        raise unknown("library", library, LIBRARIES)
    try:
        module, example = make(name, size)
    except InputError:
        raise
    except Exception as error:  # the library's code may raise any
        raise InputError(f"{library}:{name} cannot be built ({describe(error)[:200]})") from error
    return module.eval(), example


def _imported(library: str) -> Any:
    try:
        prepare_torchvision()
        return importlib.import_module(library)
    except ImportError as error:
        raise InputError(
            f"{library} cannot be imported ({error}): install it with `pip install {library}`"
        ) from error


def timm_networks(pattern: str) -> list[str]:
    """Names of timm's networks that match a pattern such as resnet*."""
    return list(_imported("timm").list_models(pattern))


def _timm(name: str, size: int | None) -> tuple[nn.Module, Example]:
    timm = _imported("timm")
    if not timm.is_model(name):
        raise _unlisted("timm", name, timm.list_models())
    channels, own, _ = (
        timm.get_pretrained_cfg(name).input_size
        if timm.get_pretrained_cfg(name)
        else (3, IMAGE_SIZE, 0)
    )
    with without_weights():
        try:
            model = timm.create_model(
                name, pretrained=False, **({} if size is None else {"img_size": size})
            )
        except TypeError:  # the network does not take an image size
            model = timm.create_model(name, pretrained=False)
    return model, _images(channels, size or own)


def _torchvision(name: str, size: int | None) -> tuple[nn.Module, Example]:
    models = _imported("torchvision").models
    short = name.rpartition(".")[2]  # segmentation.fcn_resnet50, as its documentation writes it
    if short not in models.list_models():
        raise _unlisted("torchvision", name, models.list_models())
    builder = models.get_model_builder(short)
    if "detection" in builder.__module__ or "optical_flow" in builder.__module__:
        raise InputError(
            f"torchvision:{name}: networks whose output size depends on the image are not supported"
        )
    options = {
        "weights_backbone": None,
        "aux_logits": False,
        "aux_loss": False,
        "init_weights": False,
    }
    with without_weights():
        model = builder(weights=None, **{k: v for k, v in options.items() if _takes(builder, k)})
    if "video" in builder.__module__:
        frames = CLIP[0]
        side = IMAGE_SIZE if short in LARGE_CLIPS else CLIP[1]
        return model, torch.empty(1, 3, frames, size or side, size or side, device="meta")
    own = int(getattr(model, "image_size", 299 if short == "inception_v3" else IMAGE_SIZE))
    return model, _images(3, size or own)


def _takes(builder: Callable[..., Any], option: str) -> bool:
    """True if a builder, or the class to which it passes further options, has this option."""
    if option in inspect.signature(builder).parameters:
        return True
    made = {
        "googlenet": ("aux_logits", "init_weights"),
        "inception_v3": ("aux_logits", "init_weights"),
    }
    return option in made.get(builder.__name__, ()) or (
        option == "aux_loss" and "segmentation" in builder.__module__
    )


def _transformers(name: str, size: int | None) -> tuple[nn.Module, Example]:
    transformers = _imported("transformers")
    cls = getattr(transformers, name, None)
    make_config = getattr(cls, "config_class", None)
    if not isinstance(cls, type) or make_config is None:
        raise InputError(
            f"transformers has no network class {name!r}: give one such as BertForMaskedLM"
        )
    config = make_config()
    config._attn_implementation = "eager"
    with without_weights():
        model = cls(config)
    return model, _inputs(model, config, size)


def _inputs(model: Any, config: Any, size: int | None) -> Example:
    """Example input of a transformers network, by the name of its main input: images, text, sound
    or spectrum.
    """
    tokens = torch.zeros(1, TEXT_TOKENS, dtype=torch.int64)
    kind = model.main_input_name
    if kind == "pixel_values":
        side = size or getattr(config, "image_size", None) or IMAGE_SIZE
        height, width = side if isinstance(side, list | tuple) else (side, side)
        clip = [config.num_frames] if hasattr(config, "num_frames") else []
        return {
            kind: torch.empty(
                1, *clip, getattr(config, "num_channels", 3), height, width, device="meta"
            )
        }
    if kind == "input_values" and hasattr(config, "num_mel_bins"):
        return {kind: torch.empty(1, size or config.max_length, config.num_mel_bins, device="meta")}
    if kind == "input_values":
        return {kind: torch.empty(1, size or AUDIO_SAMPLES, device="meta")}
    if kind == "input_features" and hasattr(config, "num_mel_bins"):
        frames = 2 * getattr(config, "max_source_positions", TEXT_TOKENS)
        return {
            kind: torch.empty(1, config.num_mel_bins, size or frames, device="meta"),
            **_decoded(config, tokens),
        }
    if kind != "input_ids":
        raise InputError(
            f"transformers:{type(model).__name__} takes {kind}: only image, text and audio inputs "
            "are supported"
        )
    longest = getattr(getattr(config, "text_config", config), "max_position_embeddings", None) or -1
    usual = min(TEXT_TOKENS, longest) if longest > 0 else TEXT_TOKENS  # XLNet has -1 for no limit
    tokens = torch.zeros(1, size or usual, dtype=torch.int64)
    if hasattr(config, "vision_config"):
        side = config.vision_config.image_size
        return {kind: tokens[:, :77], "pixel_values": _images(3, side)}
    return {kind: tokens, **_decoded(config, tokens)}


def _decoded(config: Any, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """One token as input of the decoder, if there is one."""
    return {"decoder_input_ids": tokens[:, :1]} if config.is_encoder_decoder else {}


def _unlisted(library: str, name: str, names: Sequence[str]) -> InputError:
    """Error for an unknown name, with the most similar names of the library."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f": did you mean {' or '.join(near)}?" if near else ""
    return InputError(f"{library} has no network {name!r}{hint}")


def _images(channels: int, side: int) -> torch.Tensor:
    return torch.empty(1, channels, side, side, device="meta")


LIBRARIES: dict[str, Callable[[str, int | None], tuple[nn.Module, Example]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
}
