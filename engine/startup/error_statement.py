"""The statement of error: how far a quantised model's logits are from what it was made of.

The reference runs while weights are loaded, layer by layer (`engine.models.fused.reference`), or
behind the loading where keys and values alone are rounded. The served model runs whole, over a
cache that stores keys and values as the server's does. Both attend in plain torch, so that nothing
but what is rounded tells them apart.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
            mean_kl, gap = _differ(model, wanted, hidden_states(model, ids, scales))
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


class Difference(NamedTuple):
    """How far logits are from those of a reference, in nats; not finite where a logit is NaN.

    Attributes:
        mean_kl: mean over positions of KL(reference || other).
        largest_gap: the largest difference between the two logprobs of one token.
    """

    mean_kl: float
    largest_gap: float


def difference(parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Difference:
    """Compare logits [N, vocab] of a reference with others, part by part, in float64."""
    total, largest, count = 0.0, 0.0, 0
    for reference, other in parts:
        log_p, log_q = (logits.double().log_softmax(-1) for logits in (reference, other))
        gaps = (log_p - log_q).where(log_p != log_q, 0.0)  # both are -inf where a model has masks
        total += float((log_p.exp() * gaps).sum())
        gap = float(gaps.abs().max())
        largest = gap if math.isnan(gap) else max(largest, gap)
        count += len(reference)
    mean_kl = total / count
    return Difference(max(mean_kl, 0.0) if math.isfinite(mean_kl) else mean_kl, largest)


@torch.inference_mode()
def _differ(model: CausalLM, reference: torch.Tensor, served: torch.Tensor) -> Difference:
    """What two hidden states [T, hidden_size] each make of the next token, compared."""
    parts = zip(*(torch.split(x, ROWS) for x in (reference, served)), strict=True)
    return difference((model.logits(wanted), model.logits(own)) for wanted, own in parts)


def _precision(model: CausalLM) -> str:
    return str(model.dtype).removeprefix("torch.")


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
