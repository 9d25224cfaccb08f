"""The statement of error: how far a quantised model's logits are from what it was made of.

The reference runs while weights are loaded, layer by layer (`engine.models.fused.reference`), or
behind the loading where keys and values alone are rounded. The served model runs whole, over a
cache that stores keys and values as the server's does. Both attend in plain torch, so that nothing
but what is rounded tells them apart.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch

from engine.config import EngineConfig, ErrorStatement
from engine.contracts.model import CausalLM
from engine.models.fused.reference import Reference, attention_of_text
from engine.models.loader import max_position
from engine.progress import phase
from engine.startup.error_text import error_text
from engine.structured.tokenizer import TokenizerReader

logger = logging.getLogger(__name__)

ROWS = 64
"""Positions whose logits are compared at a time, in float64."""


class ErrorMeasure:
    """Measures a model that is being loaded, if anything of it is quantised.

    Args:
        reader: of the model's tokenizer; without one the text is of arbitrary tokens.

    Attributes:
        reference: to be given to the loading.
    """

    def __init__(self, config: EngineConfig, reader: TokenizerReader | None) -> None:
        self._config = config
        self._reader = reader
        self._text: tuple[str, torch.Tensor] | None = None
        self.reference = Reference(self._token_ids)

    def statement(
        self, model: CausalLM, device: torch.device, scales: Sequence[torch.Tensor] | None
    ) -> ErrorStatement | None:
        """The statement of a model that was loaded; None where nothing of it is quantised.

        Args:
            scales: of keys and values, as of `KVCache`; None where they are not quantised.
        """
        reference = self.reference
        if reference.hidden is None and scales is None:
            return None
        with phase("measuring the error of quantization"):
            ids = self._token_ids(model.vocab_size).to(device)
            wanted, reference.hidden = reference.hidden, None
            if wanted is None:
                wanted = hidden_states(model, ids, None)
            mean_kl, gap = difference(model, wanted, hidden_states(model, ids, scales))
        if not math.isfinite(mean_kl + gap):
            logger.warning("logits of the quantized model or of its reference are no numbers")
        assert self._text is not None
        return ErrorStatement(
            scheme=_joined(reference.scheme, "keys and values in fp8" if scales else ""),
            reference=reference.weights or f"keys and values in {_precision(model)}",
            mean_kl=mean_kl if math.isfinite(mean_kl) else None,
            max_logprob_gap=gap if math.isfinite(gap) else None,
            text=f"{self._text[0]}, {len(ids)} tokens",
        )

    def _token_ids(self, vocab_size: int) -> torch.Tensor:
        if self._text is None:
            name, ids = error_text(self._reader, vocab_size)
            model = self._config.model
            self._text = name, ids[: model.max_model_len or max_position(model)]
        return self._text[1]


@torch.inference_mode()
def hidden_states(
    model: CausalLM, ids: torch.Tensor, scales: Sequence[torch.Tensor] | None
) -> torch.Tensor:
    """The model's hidden states [T, hidden_size] of ids int64 [T], in one forward.

    Args:
        ids: on the model's device. scales: as of `KVCache`.
    """
    specs, device = model.attention_specs, ids.device
    attention = attention_of_text(specs, model.dtype, device, len(ids), scales)
    return model.forward(ids.to(torch.int32), torch.arange(len(ids), device=device), attention)


@torch.inference_mode()
def difference(
    model: CausalLM, reference: torch.Tensor, served: torch.Tensor
) -> tuple[float, float]:
    """What two hidden states [T, hidden_size] each make of the next token, compared in float64.

    Returns:
        The mean over positions of KL(reference || served), and the largest difference between two
        logprobs of one token, both in nats; not finite where a logit is NaN.
    """
    total = torch.zeros((), dtype=torch.float64, device=reference.device)
    largest = total.clone()
    for wanted, own in zip(*(torch.split(x, ROWS) for x in (reference, served)), strict=True):
        log_p = model.logits(wanted).double().log_softmax(-1)
        log_q = model.logits(own).double().log_softmax(-1)
        gaps = (log_p - log_q).where(log_p != log_q, 0.0)  # both are -inf where a model has masks
        total += (log_p.exp() * gaps).sum()
        largest = torch.maximum(largest, gaps.abs().max())
    mean_kl = float(total) / len(reference)
    return max(mean_kl, 0.0) if math.isfinite(mean_kl) else mean_kl, float(largest)


def _precision(model: CausalLM) -> str:
    return str(model.dtype).removeprefix("torch.")


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
