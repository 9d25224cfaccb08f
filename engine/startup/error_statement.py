"""The statement of error: how far a quantised model's logits are from what it was made of.

The reference runs while weights are loaded, layer by layer (`engine.models.reference`), or
after the loading where keys and values alone are rounded. The served model runs whole, over a
cache that stores keys and values as the server's does. Both attend in plain torch, so that nothing
but what is rounded tells them apart.

Of several ranks each runs its part of both models, with the sums that it serves with, and compares
the logits of its ids: of each position ranks exchange the log of a mass, of all positions
the divergence and the gap that they found.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from engine.config import EngineConfig
from engine.contracts.info import ErrorStatement
from engine.contracts.model import CausalLM, ModelInputs
from engine.memory.states import text_states
from engine.models.expected import max_position
from engine.models.reference import Reference, attention_of_text
from engine.progress import phase
from engine.startup.error_text import NUM_TOKENS, error_text
from engine.structured.tokenizer import TokenizerReader
from sampling.device.ranks import LoneRank, RankExchange

logger = logging.getLogger(__name__)

ROWS = 64
"""Positions whose logits are compared at a time, in float64."""


class ErrorMeasure:
    """Measures a model that is being loaded, if anything of it is quantised.

    Args:
        reader: of the model's tokenizer; without one the text is of arbitrary tokens.
        exchange: the ranks that measure together; rank 0's reader is that of all.

    Attributes:
        reference: to be given to the loading.
    """

    def __init__(
        self,
        config: EngineConfig,
        reader: TokenizerReader | None,
        exchange: RankExchange | None = None,
    ) -> None:
        self._exchange = exchange or LoneRank()
        self._config = config
        self._reader = reader
        self._text: tuple[str, torch.Tensor] | None = None
        self.reference = Reference(self._token_ids)

    def statement(
        self, model: CausalLM, device: torch.device, scales: Sequence[torch.Tensor] | None
    ) -> ErrorStatement | None:
        """The statement of a model that was loaded; None where nothing of it is quantised.

        Args:
            scales: of keys and values, as of `KVCache`; None or none where they are not quantised.
        """
        reference = self.reference
        if reference.hidden is None and not scales:
            return None
        with phase("measuring the error of quantization"):
            ids = self._token_ids(model.vocab_size).to(device)
            wanted, reference.hidden = reference.hidden, None
            if wanted is None:
                wanted = hidden_states(model, ids, None)
            served = hidden_states(model, ids, scales)
            mean_kl, gap = _differ(model, wanted, served, self._exchange)
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
            ids = _of_first_rank(ids, self._exchange)
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
    states = text_states(model.state_specs(0), device)
    positions = torch.arange(len(ids), device=device)
    inputs = ModelInputs(ids.to(torch.int32), positions, attention, states(0, len(ids)))
    return model.forward(inputs).final


class Difference(NamedTuple):
    """How far logits are from those of a reference, in nats; not finite where a logit is NaN.

    Attributes:
        mean_kl: mean over positions of KL(reference || other).
        largest_gap: the largest difference between the two logprobs of one token.
    """

    mean_kl: float
    largest_gap: float


def difference(
    parts: Iterable[tuple[torch.Tensor, torch.Tensor]], exchange: RankExchange | None = None
) -> Difference:
    """Compare logits [N, vocab] of a reference with others, part by part, in float64.

    Args:
        exchange: of the ranks that each have logits of other ids.
    """
    exchange = exchange or LoneRank()
    total, largest, count = 0.0, 0.0, 0
    for reference, other in parts:
        log_p, log_q = _log_probs(torch.stack((reference, other)).double(), exchange)
        gaps = (log_p - log_q).where(log_p != log_q, 0.0)  # both are -inf where a model has masks
        total += float((log_p.exp() * gaps).sum())
        gap = float(gaps.abs().max())
        largest = gap if math.isnan(gap) else max(largest, gap)
        count += len(reference)
    gathered = exchange.all_gather(torch.tensor([total, largest], dtype=torch.float64))
    mean_kl, largest = float(gathered[:, 0].sum()) / count, float(gathered[:, 1].amax())
    return Difference(max(mean_kl, 0.0) if math.isfinite(mean_kl) else mean_kl, largest)


def _log_probs(logits: torch.Tensor, exchange: RankExchange) -> torch.Tensor:
    """The log-probabilities of logits float64 [2, N, ids], normalised over all ranks' ids."""
    log_masses = exchange.all_gather(logits.logsumexp(-1))
    return logits - log_masses.logsumexp(0)[..., None]


@torch.inference_mode()
def _differ(
    model: CausalLM, reference: torch.Tensor, served: torch.Tensor, exchange: RankExchange
) -> Difference:
    """What two hidden states [T, hidden_size] each make of the next token, compared."""
    parts = zip(*(torch.split(x, ROWS) for x in (reference, served)), strict=True)
    logits = ((model.logits(wanted), model.logits(own)) for wanted, own in parts)
    return difference(logits, exchange)


def _of_first_rank(ids: torch.Tensor, exchange: RankExchange) -> torch.Tensor:
    """Rank 0's ids int64 [T], at most `NUM_TOKENS`; a rank may have others."""
    padded = torch.full((NUM_TOKENS,), -1)
    padded[: len(ids)] = ids
    first = exchange.all_gather(padded)[0]
    return first[first >= 0]


def _precision(model: CausalLM) -> str:
    return str(model.dtype).removeprefix("torch.")


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
