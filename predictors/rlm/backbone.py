"""T5Gemma's encoder as the RLM's reader, through `transformers`: the backbone of arXiv 2509.26476.

Any T5Gemma (arXiv 2504.06225) does: a folder, or a name on the Hugging Face hub such as `google/t5gemma-b-b-ul2`, whose
licence has to be accepted there once. Only safetensors are read, and no code comes with a model.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from predictors.rlm.model import ModelConfig, Pooling, TextEncoder
from search_spaces.common.errors import InputError


class T5GemmaTextEncoder(nn.Module):
    """Tokens (B, T) and lengths (B,) to latent states (B, M, D), as `TextEncoder`."""

    def __init__(self, config: ModelConfig) -> None:
        from transformers.models.t5gemma.modeling_t5gemma import T5GemmaConfig, T5GemmaEncoderModel

        super().__init__()
        self.config = config
        sizes = config.backbone
        assert sizes is not None
        self.backbone = T5GemmaEncoderModel(T5GemmaConfig(encoder=sizes, decoder=sizes, is_encoder_decoder=False))
        self.project = nn.Linear(int(sizes["hidden_size"]), config.width, bias=False)
        self.pooling = Pooling(config)
        self.norm = nn.RMSNorm(config.width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        states = self.backbone(input_ids=tokens, attention_mask=mask).last_hidden_state  # (B, T, hidden)
        return self.norm(self.pooling(self.project(states), mask[:, None, None]))


def text_encoder(config: ModelConfig) -> TextEncoder | T5GemmaTextEncoder:
    """An encoder of these sizes, not yet trained."""
    return TextEncoder(config) if config.backbone is None else T5GemmaTextEncoder(config)


def load_backbone(name: str, sizes: dict[str, Any], frozen: bool) -> tuple[Tokenizer, T5GemmaTextEncoder]:
    """The tokenizer and the pretrained encoder of a T5Gemma by folder or hub name; `InputError` where it can't be had.

    sizes: of what stands on it (`ModelConfig`). frozen: T5Gemma's own weights are not trained.
    """
    import transformers
    from transformers.models.t5gemma.modeling_t5gemma import T5GemmaEncoderModel

    try:
        config = transformers.AutoConfig.from_pretrained(name)
        if config.model_type != "t5gemma":
            raise InputError(f"{name}: a {config.model_type} model; the backbone of an rlm is a t5gemma")
        config.is_encoder_decoder = False
        tokenizer = transformers.AutoTokenizer.from_pretrained(name).backend_tokenizer
        pretrained = T5GemmaEncoderModel.from_pretrained(name, config=config, dtype=torch.float32, use_safetensors=True)
    except (OSError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"{name}: no T5Gemma could be loaded ({reason}). Give a folder with config.json, tokenizer.json and "
            "model.safetensors, or a hub name whose licence you accepted (log in with `hf auth login`)"
        ) from None
    own = config.encoder.to_dict()
    read = {"vocabulary": own["vocab_size"], "text_tokens": own["max_position_embeddings"]}
    encoder = T5GemmaTextEncoder(ModelConfig(**{**read, **sizes}, backbone=own))
    encoder.backbone.load_state_dict(pretrained.state_dict())
    encoder.backbone.requires_grad_(not frozen)
    return tokenizer, encoder
