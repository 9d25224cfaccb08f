"""The object that `--speculative-config` holds, and its checks. Imports no torch."""

from __future__ import annotations

import difflib
import itertools
import json
import math
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from engine.errors import ConfigError

MAX_DRAFTS = 16
MAX_MTP_DRAFTS = 8
MAX_MATCH = 32
"""The longest match of "suffix", `engine.kernels.suffix.MAX_DEPTH`."""
TEXTUAL = ("ngram", "suffix")
"""Methods that draft from text alone."""
BLOCK_METHODS = ("dflash", "dspark")
"""Methods whose heads draft a block of tokens in one forward."""
SUFFIX_LIMITS = {
    "suffix_decoding_max_tree_depth": (1, MAX_MATCH),
    "suffix_decoding_max_spec_factor": (1 / MAX_MATCH, MAX_DRAFTS),
    "suffix_decoding_min_token_prob": (0, 1),
    "suffix_decoding_max_cached_requests": (0, 10_000),
}
"""Fields of "suffix" alone: the least and the greatest value."""
RENAMED = {
    "strict": '"rejection_sample_method": "standard" with "draft_sample_method": "greedy"',
    "probabilistic": '"rejection_sample_method": "standard" with "draft_sample_method": "gumbel"',
}
"""Removed spellings, and their replacements."""

Method = Literal["eagle", "eagle3", "dflash", "dspark", "mtp", "draft_model", "ngram", "suffix"]
DraftSampleMethod = Literal["greedy", "gumbel"]
RejectionSampleMethod = Literal["standard", "block", "synthetic", "coupled"]
DraftSource = Literal["greedy", "gumbel", "coupled"]
CHOICES: dict[str, tuple[str, ...]] = {
    "method": get_args(Method),
    "draft_sample_method": get_args(DraftSampleMethod),
    "rejection_sample_method": get_args(RejectionSampleMethod),
}


def draft_counts(num_tokens: int) -> tuple[int, ...]:
    """The numbers of drafts that steps bring which bring some: a quarter, half and all of k."""
    return tuple(sorted({-(-num_tokens // part) for part in (4, 2, 1)} - {0}))


class SuffixRules(NamedTuple):
    """How the method "suffix" chooses drafts.

    Attributes:
        depth: the longest match, in tokens.
        factor: most drafts for each token that matches.
        least: the least probability of a draft, by counts of what followed.
    """

    depth: int = 24
    factor: float = 1.0
    least: float = 0.1


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drafted and verified; field names are vLLM's.

    Attributes:
        method: the kind of drafter.
        num_speculative_tokens: k, drafts per step, 1 to `MAX_DRAFTS`.
        model: folder or hub id of the head or draft model; none for "mtp", whose head is the
            target's own, "ngram" and "suffix".
        revision: branch, tag or commit of a hub id.
        draft_sample_method: "greedy" takes the draft's highest token, "gumbel" draws from the
            draft's distribution. None is "gumbel" with "coupled" and "block", otherwise "greedy".
        rejection_sample_method: "block" decides on a step's drafts together; "synthetic" accepts at
            given rates, for studies of cost; "coupled" accepts a draft equal to the token the
            request draws without speculation.
        synthetic_acceptance_rates: probability that the first i + 1 drafts are all accepted, for
            each i below k; never rising.
        synthetic_acceptance_length: mean tokens per step, the target's own included, 1 to k + 1.
        prompt_lookup_min, prompt_lookup_max: shortest and longest n-gram looked up, in tokens; one
            that is missing equals the other, and without both they are 5.
        suffix_decoding_max_tree_depth, suffix_decoding_max_spec_factor,
        suffix_decoding_min_token_prob: `SuffixRules.depth`, `factor` and `least`; None leaves the
            defaults.
        suffix_decoding_max_cached_requests: recent outputs of other requests that drafts may
            follow; None or 0 reads a row's own text alone.
        disable_by_batch_size: choices decoding at once from which on nothing is drafted; None
            leaves it to the engine.
    """

    method: Method
    num_speculative_tokens: int
    model: str | None = None
    revision: str | None = None
    draft_sample_method: DraftSampleMethod | None = None
    rejection_sample_method: RejectionSampleMethod = "standard"
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    synthetic_acceptance_length: float | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_min_token_prob: float | None = None
    suffix_decoding_max_cached_requests: int | None = None
    disable_by_batch_size: int | None = None

    def __post_init__(self) -> None:
        _in_range("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFTS)
        if self.disable_by_batch_size is not None:
            _in_range("disable_by_batch_size", self.disable_by_batch_size, 1, math.inf)
        _check_method(self)
        _check_suffix(self)
        _check_synthetic(self)

    @property
    def draft_source(self) -> DraftSource:
        """The way drafts are chosen: the highest token, or by the draft's or the target's noise."""
        coupled = self.rejection_sample_method == "coupled"
        drawn = self.draft_sample_method or self.rejection_sample_method in ("coupled", "block")
        if self.draft_sample_method == "greedy" or not drawn:
            return "greedy"
        return "coupled" if coupled else "gumbel"

    @property
    def keeps_draws(self) -> bool:
        """Whether a seed draws the tokens that it draws without speculation."""
        return self.rejection_sample_method != "synthetic" and self.draft_source != "gumbel"

    @property
    def lookup_lengths(self) -> tuple[int, int]:
        """The lengths of the shortest and the longest n-gram looked up."""
        given = [n for n in (self.prompt_lookup_min, self.prompt_lookup_max) if n is not None]
        return (given[0], given[-1]) if given else (5, 5)

    @property
    def suffix_rules(self) -> SuffixRules:
        """The rules of "suffix", the defaults where nothing is given."""
        given: dict[str, Any] = {
            "depth": self.suffix_decoding_max_tree_depth,
            "factor": self.suffix_decoding_max_spec_factor,
            "least": self.suffix_decoding_min_token_prob,
        }
        return SuffixRules(**{name: each for name, each in given.items() if each is not None})

    @property
    def acceptance_rates(self) -> tuple[float, ...] | None:
        """Synthetic probabilities that draft i is accepted after those before it; else None.

        A length becomes the rates of least variance: the whole part of it in drafts that are
        certain, the fraction in one draft by chance.
        """
        if self.rejection_sample_method != "synthetic":
            return None
        joint = self.synthetic_acceptance_rates
        if joint is None:
            assert self.synthetic_acceptance_length is not None
            accepted = self.synthetic_acceptance_length - 1
            joint = tuple(
                min(max(accepted - i, 0.0), 1.0) for i in range(self.num_speculative_tokens)
            )
        before = (1.0, *joint[:-1])
        return tuple(rate / last if last else 0.0 for rate, last in zip(joint, before, strict=True))


def parse_speculative_config(text: str, *, own_head: str | None = None) -> SpeculativeConfig | None:
    """Read the object of a JSON text; None for null, which overrides a configuration file.

    Args:
        own_head: EAGLE head that ships with the target, used where the object names no model.

    Raises:
        ConfigError: one line that names the field, what it may be and what it is.
    """
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise _error(f"not JSON: {error}") from None
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise _error(f"must be a JSON object or null, got {text.strip()[:60]}")
    _check_names(fields)
    if fields["method"] == "suffix":
        fields.setdefault("num_speculative_tokens", MAX_DRAFTS)
    if own_head is not None and fields["method"] == "eagle":
        fields.setdefault("model", own_head)
    try:
        return msgspec.convert(fields, SpeculativeConfig)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise _error(str(error).replace("`$.", "`")) from None


def _check_names(fields: dict[str, Any]) -> None:
    """Refuse unknown fields and values, with better messages than a decoder has."""
    known = SpeculativeConfig.__struct_fields__
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f" (there are {', '.join(known)})"
            raise _error(f"unknown field {name!r}{meant}")
    for name, choices in CHOICES.items():
        value = fields.get(name, choices[0])
        if isinstance(value, str) and value in RENAMED and name != "method":
            raise _error(f"{name} {value!r} was removed; it is now {RENAMED[value]}")
        if value not in choices and not (value is None and name == "draft_sample_method"):
            raise _error(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    for name in ("method", "num_speculative_tokens"):
        if name not in fields and not (name != "method" and fields["method"] == "suffix"):
            raise _error(f"{name} is missing")


def _check_method(config: SpeculativeConfig) -> None:
    lookup = config.prompt_lookup_min, config.prompt_lookup_max
    has_model = config.method not in ("mtp", *TEXTUAL)
    if has_model and not config.model:
        raise _error(f"method {config.method!r} needs a model (folder or hub id)")
    if not has_model and (config.model is not None or config.revision is not None):
        raise _error(f"method {config.method!r} takes no model")
    if config.method == "mtp":
        _in_range("num_speculative_tokens", config.num_speculative_tokens, 1, MAX_MTP_DRAFTS)
    if config.method in TEXTUAL and config.draft_sample_method == "gumbel":
        raise _error(
            f"method {config.method!r} has no draft logits: draft_sample_method must be greedy"
        )
    if config.rejection_sample_method == "block":
        if config.method in TEXTUAL:
            raise _error(
                f"method {config.method!r} has no draft logits, without which "
                "rejection_sample_method 'block' is 'standard'"
            )
        if config.draft_sample_method == "greedy":
            raise _error(
                "rejection_sample_method 'block' needs draft_sample_method 'gumbel', got 'greedy'"
            )
    if config.method != "ngram":
        if lookup != (None, None):
            raise _error(f"prompt_lookup_min and _max are for ngram, not {config.method}")
        return
    low, high = config.lookup_lengths
    if not 1 <= low <= high:
        raise _error(
            f"prompt_lookup_min must be at least 1 and at most prompt_lookup_max, got {low}, {high}"
        )


def _check_suffix(config: SpeculativeConfig) -> None:
    for name, (low, high) in SUFFIX_LIMITS.items():
        value = getattr(config, name)
        if value is None:
            continue
        if config.method != "suffix":
            raise _error(f"{name} is for suffix, not {config.method}")
        _in_range(name, value, low, high)


def _check_synthetic(config: SpeculativeConfig) -> None:
    rates, length = config.synthetic_acceptance_rates, config.synthetic_acceptance_length
    k = config.num_speculative_tokens
    if rates is not None and length is not None:
        raise _error(
            "synthetic_acceptance_rates and synthetic_acceptance_length exclude each other"
        )
    given = rates is not None or length is not None
    if given != (config.rejection_sample_method == "synthetic"):
        raise _error(
            "rejection_sample_method 'synthetic' goes with either synthetic_acceptance_rates or "
            f"synthetic_acceptance_length, got {config.rejection_sample_method!r} with "
            f"{'one' if given else 'neither'}"
        )
    if length is not None:
        _in_range("synthetic_acceptance_length", length, 1, k + 1)
    if rates is None:
        return
    if len(rates) != k:
        raise _error(
            f"synthetic_acceptance_rates must have num_speculative_tokens ({k}) entries, "
            f"got {len(rates)}"
        )
    for rate in rates:
        _in_range("synthetic_acceptance_rates", rate, 0, 1)
    if any(after > before for before, after in itertools.pairwise(rates)):
        raise _error(
            "synthetic_acceptance_rates must not rise: each is the probability that its draft and "
            f"all before it are accepted, got {list(rates)}"
        )


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        limits = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise _error(f"{name} must be {limits}, got {value}")


def _error(reason: str) -> ConfigError:
    return ConfigError(f"--speculative-config: {reason}")
