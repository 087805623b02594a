"""T5Gemma's encoder from `transformers` as a text encoder: the backbone of arXiv 2509.26476.

Any T5Gemma (arXiv 2504.06225) works: a folder, or a name on the Hugging Face hub such as
    `google/t5gemma-b-b-ul2`,
whose licence must be accepted there once. Only safetensors are read, and no code is loaded from a
model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from predictors.rlm.encoder import COMMON, QUALITY
from predictors.rlm.sketches import COUNTS, NEIGHBOURS
from search_spaces.common.errors import InputError

BATCH_TEXTS = 8


class T5GemmaReader:
    """A frozen, pretrained T5Gemma encoder; a text's state is the mean of the last hidden states of
    its tokens.
    """

    def __init__(self, name: str) -> None:
        """Load a model by folder or hub name.

        Raises:
            InputError: if there is no T5Gemma of this name, or it cannot be loaded.
        """
        from search_spaces.ir.pytorch.libraries import prepare_torchvision

        prepare_torchvision()
        import transformers
        from transformers.models.t5gemma.modeling_t5gemma import T5GemmaEncoderModel

        try:
            config = transformers.AutoConfig.from_pretrained(name)
            if config.model_type != "t5gemma":
                raise InputError(
                    f"{name}: a {config.model_type} model; the backbone of an rlm must be a t5gemma"
                )
            config.is_encoder_decoder = False
            self.limit = int(config.encoder.max_position_embeddings)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(name).backend_tokenizer
            self.encoder = T5GemmaEncoderModel.from_pretrained(
                name, config=config, dtype=torch.float32, use_safetensors=True
            ).eval()
        except (OSError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"{name}: no T5Gemma could be loaded ({reason}). Give a folder with config.json, "
                "tokenizer.json and "
                "model.safetensors, or a hub name whose licence you accepted (log in with `hf auth "
                "login`)"
            ) from error

    @torch.inference_mode()
    def states(self, texts: Sequence[str]) -> np.ndarray:
        """States (n, hidden + QUALITY + COUNTS + NEIGHBOURS + COMMON) of n texts, never truncated.

        All parts but the first are 0, except one common number: log2 of 1 plus the number of
            tokens.

        Raises:
            InputError: if a text is empty or longer than the model's limit.
        """
        ids = [encoded.ids for encoded in self.tokenizer.encode_batch(list(texts))]
        for tokens, text in zip(ids, texts, strict=True):
            if not tokens:
                raise InputError("an empty text has nothing to predict from")
            if len(tokens) > self.limit:
                raise InputError(
                    f"the text {text[:60]!r}… has {len(tokens)} tokens; the model's limit is "
                    f"{self.limit}"
                )
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        size = self.encoder.config.encoder.hidden_size
        found = np.zeros((len(ids), size + QUALITY + COUNTS + NEIGHBOURS + COMMON), np.float32)
        for start in range(0, len(order), BATCH_TEXTS):
            rows = order[start : start + BATCH_TEXTS]
            lengths = torch.tensor([len(ids[i]) for i in rows])
            tokens = torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(ids[i]) for i in rows], batch_first=True
            )
            mask = torch.arange(tokens.shape[1]) < lengths[:, None]
            states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
            mean = (states * mask[..., None]).sum(1) / lengths[:, None]
            found[rows, :size] = mean.numpy()
            found[rows, -2] = torch.log2(1.0 + lengths).numpy()
        return found
