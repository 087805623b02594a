"""Language models on a device: the prompt, then token by token with a key-value cache.

    prefill   input_ids (N, length)                          ─▶ logits of the last token, present.*
    decoding  input_ids (N, 1), past_key_values.* (length)   ─▶ logits, present.* (length + 1)

A causal model of transformers (GPT-2, Llama, Qwen, Mistral, Gemma, …: its `forward` takes
`past_key_values`) becomes two ONNX models, which ONNX Runtime times. The length is that of the
example input: the tokens of the prompt, and those before the next one when it is decoded. Keys and
values have as many heads as the model's configuration gives them, so that grouped queries make the
cache smaller and decoding faster. Layers with a sliding window keep its last tokens only.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nas.evaluation.latency import CPU, Latency, LatencyTask, open_session, time_serialized
from nas.evaluation.metrics import LANGUAGE_METRICS
from search_spaces.common.errors import InputError
from search_spaces.ir.onnx import to_model
from search_spaces.ir.pytorch import record_with_numbers

if TYPE_CHECKING:
    import onnx

    from nas.evaluation.trainable import Trainable

PAST, PRESENT = "past_key_values", "present"
_KINDS = ("key", "value")
MAX_SHOWN = 200  # characters of a model's own error
# Of logits after a step of decoding, to those of all tokens at once, relative to the largest one
TOLERANCE = 1e-3


class LanguageFiles(NamedTuple):
    """A causal model as ONNX.

    Attributes:
        prefill: reads the prompt and fills the cache.
        decoding: reads one token and the cache.
        cache_bytes: of keys and values of one sequence of the prompt's length.
    """

    prefill: onnx.ModelProto
    decoding: onnx.ModelProto
    cache_bytes: int


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal model of transformers, and the tokens that it is measured with.

    Args:
        module: the model; its `forward` takes `input_ids` and `past_key_values`.
        tokens: (n, length) example of a prompt.

    Raises:
        InputError: the module takes no cache.
    """

    module: nn.Module
    tokens: Tensor

    def __post_init__(self) -> None:
        takes = inspect.signature(self.module.forward).parameters
        if "input_ids" not in takes or PAST not in takes:
            raise InputError(
                f"{type(self.module).__name__} is no language model that decodes with a cache: its "
                f"forward must take input_ids and {PAST}, as causal models of transformers do"
            )

    @classmethod
    def of(cls, network: Trainable) -> LanguageModel:
        """The language model of a space's network."""
        if network.build is None:
            raise InputError(
                "prefill and decoding need a space of language models, such as build(trial) that "
                "returns a causal model of transformers"
            )
        example = network.example
        tokens = example.get("input_ids") if isinstance(example, Mapping) else example
        tokens = tokens[0] if isinstance(tokens, tuple | list) else tokens
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
            raise InputError(
                "prefill and decoding need an example input of token ids, such as "
                'example_input = {"input_ids": torch.zeros(1, 128, dtype=torch.long)}'
            )
        return cls(network.module().eval(), tokens)

    def files(self) -> LanguageFiles:
        """The model as two ONNX models.

        Raises:
            InputError: a function of the model cannot be recorded, or the model keeps anything else
                than keys and values of earlier tokens.
        """
        # 1. The prompt. Its keys and values have the shapes of the cache.
        prefill = _Prefill(self.module).eval()
        step = _Step(self.module, self.tokens.shape[1]).eval()
        cache = self._checked_cache(prefill, step)
        past, present = [], ["logits"]
        for layer in range(len(cache) // 2):
            for kind in _KINDS:
                past.append(f"{PAST}.{layer}.{kind}")
                present.append(f"{PRESENT}.{layer}.{kind}")
        filled = _exported(prefill, (self.tokens,), ["input_ids"], present)

        # 2. One more token.
        last_tokens = self.tokens[:, -1:]
        decoded = _exported(step, (last_tokens, *cache), ["input_ids", *past], present)

        # 3. Bytes of the cache, per sample.
        total = sum(x.numel() * x.element_size() for x in cache)
        return LanguageFiles(filled, decoded, total // len(self.tokens))

    def _checked_cache(self, prefill: _Prefill, step: _Step) -> list[Tensor]:
        """Keys and values of each layer after the prompt.

        Raises:
            InputError: decoding with them does not give what the model gives when it reads all
                tokens at once.
        """
        name = type(self.module).__name__
        last = self.tokens[:, -1:]
        everything = torch.cat([self.tokens, last], dim=1)
        try:
            with torch.no_grad():
                _, *cache = prefill(self.tokens)
                decoded = step(last, *cache)[0][:, -1]  # (n, vocabulary)
                expected = self.module(input_ids=everything, use_cache=False).logits[:, -1]
        except InputError:
            raise
        except Exception as error:  # whatever a model raises that is used in another way
            reason = " ".join(str(error).split())[:MAX_SHOWN]
            raise InputError(f"{name} does not decode with a key-value cache: {reason}") from error
        if decoded.dtype != torch.float32:  # others round more
            return cache
        difference = float((decoded - expected).abs().max() / expected.abs().max())
        if not difference <= TOLERANCE:
            raise InputError(
                f"{name} does not decode with a key-value cache: its logits differ by "
                f"{difference:.2g} of the largest one from those of all tokens at once"
            )
        return cache


class _Prefill(nn.Module):
    """Reads a prompt: logits of its last token, then keys and values of each layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        takes = inspect.signature(model.forward).parameters
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        made = self.model(input_ids=input_ids, use_cache=True, **self.options)
        return (made.logits[:, -1:], *_tensors_of(made.past_key_values))


class _Step(nn.Module):
    """Reads one token after those in the cache: its logits, then all keys and values.

    Args:
        model: the causal model.
        length: tokens before this one. Layers with a sliding window have fewer in the cache.
    """

    def __init__(self, model: nn.Module, length: int) -> None:
        super().__init__()
        self.model = model
        self.length = length

    def forward(self, input_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        # The configuration says which layers have a sliding window.
        cache = DynamicCache(config=getattr(self.model, "config", None))
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        of_layer: Any  # transformers' types know no layers with a window
        for of_layer in cache.layers:
            if getattr(of_layer, "is_sliding", False):
                of_layer.cumulative_length = self.length
        made = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        return (made.logits, *_tensors_of(made.past_key_values))


def _tensors_of(cache: Any) -> list[Tensor]:
    """Keys and values (n, heads, length, width) of each layer in turn.

    Raises:
        InputError: there is no cache, or a layer keeps something else, such as a state.
    """
    if not hasattr(cache, "layers"):
        raise InputError(f"the model keeps no keys and values, but {type(cache).__name__}")
    tensors = []
    for number, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None:
            raise InputError(
                f"layer {number} of the model keeps no keys and values of its own "
                f"({type(layer).__name__}): only attention in every layer is supported"
            )
        tensors += [keys, values]
    return tensors


def _exported(
    module: nn.Module, inputs: tuple[Tensor, ...], takes: list[str], gives: list[str]
) -> onnx.ModelProto:
    """The ONNX model of a module, with these names of inputs and outputs."""
    graph, numbers = record_with_numbers(module, inputs)
    model = to_model(graph, numbers=numbers)
    if len(model.graph.output) != len(gives):
        raise InputError("layers of the model share keys and values: that is not supported")

    # Inputs and outputs are renamed wherever they occur.
    ports = [*model.graph.input, *model.graph.output]
    names = {}
    for port, new_name in zip(ports, [*takes, *gives], strict=True):
        names[port.name] = new_name
        port.name = new_name
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return model


# --- metrics


def measure_language(network: Trainable, task: LatencyTask) -> dict[str, Latency | float]:
    """The metrics of a language model.

    They are the latency of the prompt, the latency of a token after it, and the megabytes of the
    cache of all sequences of a batch.

    Raises:
        InputError: the network is no language model, or ONNX Runtime cannot run it.
    """
    files = LanguageModel.of(network).files()
    models = [files.prefill.SerializeToString(), files.decoding.SerializeToString()]
    prefill, decoding = time_serialized(models, task)
    cache_mb = task.batch * files.cache_bytes / 1e6
    return dict(zip(LANGUAGE_METRICS, (prefill, decoding, cache_mb), strict=True))


def generate(files: LanguageFiles, tokens: np.ndarray) -> np.ndarray:
    """The most probable token after a prompt (n, length), and the one after that: (n, 2).

    They are generated by prefill and one step of decoding in ONNX Runtime.
    """
    prefill = open_session(files.prefill.SerializeToString(), provider=CPU)
    decoding = open_session(files.decoding.SerializeToString(), provider=CPU)
    logits, *cache = prefill.run(None, {"input_ids": tokens})
    first = logits[:, -1].argmax(-1)[:, None]  # (n, 1)
    names = [info.name for info in decoding.get_inputs()[1:]]
    feed = {"input_ids": first, **dict(zip(names, cache, strict=True))}
    logits = decoding.run(None, feed)[0]
    second = logits[:, -1].argmax(-1)[:, None]
    return np.concatenate([first, second], axis=1)
