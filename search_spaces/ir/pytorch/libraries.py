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
INCEPTION_SIZE = 299  # of torchvision's inception_v3
CLIP = (16, 112)  # frames, and pixels of a side, for torchvision's video networks
LARGE_CLIPS = frozenset({"mvit_v1_b", "mvit_v2_s", "s3d"})  # networks for clips of `IMAGE_SIZE`
TEXT_TOKENS = 128
CLIP_TOKENS = 77  # longest text of networks that compare texts with images, such as CLIP
AUDIO_SAMPLES = 16_000
_TORCHVISION_OPTIONS = {
    "weights_backbone": None,
    "aux_logits": False,
    "aux_loss": False,
    "init_weights": False,
}
# Options that builders pass on to their class
_PASSED_ON = {
    "googlenet": ("aux_logits", "init_weights"),
    "inception_v3": ("aux_logits", "init_weights"),
}


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
    config = timm.get_pretrained_cfg(name)
    channels, default_size, _ = config.input_size if config else (3, IMAGE_SIZE, IMAGE_SIZE)
    options = {} if size is None else {"img_size": size}
    with without_weights():
        try:
            model = timm.create_model(name, pretrained=False, **options)
        except TypeError:  # the network does not take an image size
            model = timm.create_model(name, pretrained=False)
    return model, _images(channels, size or default_size)


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

    # 1. The network, without a pretrained backbone and without the outputs that only training uses.
    options = {}
    for option, value in _TORCHVISION_OPTIONS.items():
        if _takes(builder, option):
            options[option] = value
    with without_weights():
        model = builder(weights=None, **options)

    # 2. A clip (1, 3, frames, side, side) or an image (1, 3, side, side).
    if "video" in builder.__module__:
        frames, side = CLIP
        if short in LARGE_CLIPS:
            side = IMAGE_SIZE
        side = size or side
        return model, torch.empty(1, 3, frames, side, side, device="meta")
    default_size = INCEPTION_SIZE if short == "inception_v3" else IMAGE_SIZE
    default_size = int(getattr(model, "image_size", default_size))
    return model, _images(3, size or default_size)


def _takes(builder: Callable[..., Any], option: str) -> bool:
    """True if a builder, or the class to which it passes further options, has this option."""
    if option in inspect.signature(builder).parameters:
        return True
    if option == "aux_loss" and "segmentation" in builder.__module__:
        return True
    return option in _PASSED_ON.get(builder.__name__, ())


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
    """Example input of a transformers network: images, text, sound or spectrum.

    The name of its main input says which.
    """
    kind = model.main_input_name

    # 1. Images or clips: (1, [frames,] channels, height, width)
    if kind == "pixel_values":
        side = size or getattr(config, "image_size", None) or IMAGE_SIZE
        height, width = side if isinstance(side, list | tuple) else (side, side)
        clip = [config.num_frames] if hasattr(config, "num_frames") else []
        channels = getattr(config, "num_channels", 3)
        return {kind: torch.empty(1, *clip, channels, height, width, device="meta")}

    # 2. Spectra (1, frames, bands), sounds (1, samples), spectra (1, bands, frames)
    has_bands = hasattr(config, "num_mel_bins")
    if kind == "input_values" and has_bands:
        return {kind: torch.empty(1, size or config.max_length, config.num_mel_bins, device="meta")}
    if kind == "input_values":
        return {kind: torch.empty(1, size or AUDIO_SAMPLES, device="meta")}
    if kind == "input_features" and has_bands:
        frames = size or 2 * getattr(config, "max_source_positions", TEXT_TOKENS)
        spectrum = torch.empty(1, config.num_mel_bins, frames, device="meta")
        return {kind: spectrum, **_decoded(config)}
    if kind != "input_ids":
        raise InputError(
            f"transformers:{type(model).__name__} takes {kind}: only image, text and audio inputs "
            "are supported"
        )

    # 3. Texts (1, tokens), beside an image for networks of both. XLNet has -1 for no limit.
    config_of_text = getattr(config, "text_config", config)
    limit = getattr(config_of_text, "max_position_embeddings", None) or -1
    default_size = min(TEXT_TOKENS, limit) if limit > 0 else TEXT_TOKENS
    tokens = torch.zeros(1, size or default_size, dtype=torch.int64)
    if hasattr(config, "vision_config"):
        image = _images(3, config.vision_config.image_size)
        return {kind: tokens[:, :CLIP_TOKENS], "pixel_values": image}
    return {kind: tokens, **_decoded(config)}


def _decoded(config: Any) -> dict[str, torch.Tensor]:
    """One token as input of the decoder, if there is one."""
    if not config.is_encoder_decoder:
        return {}
    return {"decoder_input_ids": torch.zeros(1, 1, dtype=torch.int64)}


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
