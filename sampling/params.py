"""A request's sampling parameters: units, bounds and neutral defaults. No torch here."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]

MAX_LOGPROB_TOKEN_IDS = 128
MAX_EDITS = 1024  # biased or banned tokens of one request
MAX_BAD_WORD_TOKENS = 2048
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1


class ParameterError(ValueError):
    """A parameter is out of its bounds.

    Attributes:
        param: the field's name as the client wrote it.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token of one choice is drawn and which logprobs come with it.

    Attributes:
        temperature: divides the logits; 0 is greedy and skips temperature and filters.
        top_k: keep the k highest tokens (ties: lower id first); 0 keeps all.
        top_p: keep the shortest prefix of that order whose mass reaches p, in (0, 1].
        min_p: keep tokens with p >= min_p * max p, in [0, 1].
        repetition_penalty: in [1e-6, 1e6]; divides positive and multiplies negative logits of
            tokens seen in prompt or output (Keskar et al. 2019, section 4.1).
        presence_penalty, frequency_penalty: in [-2, 2]; subtracted once, and per occurrence,
            for tokens of the output.
        seed: 64-bit noise key; None draws a random one at admission.
        logit_bias: added to the logits before penalties, in [-100, 100] each.
        allowed_token_ids: every other id is masked.
        bad_words: token sequences; a sequence's last token is masked after its beginning.
        min_tokens: `stop_token_ids` stay masked until that many tokens are out.
        stop_token_ids: ids that end the choice, EOS among them unless ignored.
        logprobs: number of top tokens reported per position; None reports nothing.
        logprob_token_ids: explicit ids reported per position, duplicates kept.
        logprobs_mode: which values are reported.
        kept_logprob: report the log of the mass that masks and filters left of the vocabulary.
        constrained: steps may bring masks for its rows, those of a grammar for instance.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    logprobs_mode: LogprobsMode = "raw_logprobs"
    kept_logprob: bool = False
    constrained: bool = False

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, low=0.0, high=math.inf)
        _integer("top_k", self.top_k, low=0, high=2**31 - 1)
        _number("top_p", self.top_p, low=0.0, high=1.0, open_low=True)
        _number("min_p", self.min_p, low=0.0, high=1.0)
        # Beyond these a float32 product with an ordinary logit is no longer finite.
        _number("repetition_penalty", self.repetition_penalty, low=1e-6, high=1e6)
        _number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        _number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        _integer("min_tokens", self.min_tokens, low=0, high=2**31 - 1)
        if self.seed is not None:
            _integer("seed", self.seed, low=SEED_MIN, high=SEED_MAX)
        for bias in self.logit_bias.values():
            _number("logit_bias", bias, low=-100.0, high=100.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ParameterError("allowed_token_ids", "allowed_token_ids must not be empty")
        if any(not word for word in self.bad_words):
            raise ParameterError("bad_words", "each of bad_words must have at least one token")
        self._check_edits()
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, low=0, high=2**31 - 1)
        if self.logprob_token_ids is not None:
            _integer(
                "logprob_token_ids",
                len(self.logprob_token_ids),
                low=1,
                high=MAX_LOGPROB_TOKEN_IDS,
                what="the number of logprob_token_ids",
            )

    def _check_edits(self) -> None:
        """Raise `ParameterError` where edits or bad words need more than their tables hold."""
        sizes = {
            "logit_bias": len(self.logit_bias),
            "bad_words": len(self.bad_words),
            "stop_token_ids": len(self.stop_token_ids) if self.min_tokens else 0,
        }
        if sum(sizes.values()) > MAX_EDITS:
            largest = max(sizes, key=lambda name: sizes[name])
            raise ParameterError(
                largest,
                "logit_bias, bad_words and, with min_tokens, stop_token_ids may name at most "
                f"{MAX_EDITS} tokens together, got {sum(sizes.values())}",
            )
        _integer(
            "bad_words",
            sum(len(word) for word in self.bad_words),
            low=0,
            high=MAX_BAD_WORD_TOKENS,
            what="the number of tokens in bad_words",
        )

    @property
    def greedy(self) -> bool:
        """Whether the highest logit wins without noise."""
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        """Whether counts of earlier tokens change the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def check_vocab(self, vocab_size: int) -> None:
        """Raise `ParameterError` naming the field that holds an id outside [0, vocab_size)."""
        fields = {
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids or (),
            "bad_words": [token for word in self.bad_words for token in word],
            "stop_token_ids": self.stop_token_ids,
            "logprob_token_ids": self.logprob_token_ids or (),
        }
        for name, token_ids in fields.items():
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    raise ParameterError(
                        name,
                        f"{name} holds id {token_id}; ids of this model are 0 to {vocab_size - 1}",
                    )


def _number(name: str, value: float, *, low: float, high: float, open_low: bool = False) -> None:
    """Raise `ParameterError` where a number is not finite or out of its bounds."""
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside or not math.isfinite(value):  # NaN fails the comparison
        bounds = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if high == math.inf else ']'}"
        raise ParameterError(name, f"{name} must be in {bounds}, got {value}")


def _integer(name: str, value: int, *, low: int, high: int, what: str = "") -> None:
    """Raise `ParameterError` where an integer, called `what` or `name`, is out of its bounds."""
    if not low <= value <= high:
        raise ParameterError(name, f"{what or name} must be in [{low}, {high}], got {value}")
