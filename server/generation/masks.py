"""Masks that contradict each other: together they would leave no token to draw.

`allowed_token_ids`, `bad_words` of one token, and the ends of text below `min_tokens` mask tokens
from the first one on; so does a grammar. Biases are finite, so that none of them masks a token.
"""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np

from engine.contracts.info import EngineInfo
from engine.messages.request import ThinkingBudget
from sampling.params import SamplingParams
from server.errors import ApiError, bad_request
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec
from server.structured.spec import CheckedGrammar
from server.text.tokenizer import Tokenizer

INLINE_IDS = 4096
"""More are looked at on a thread."""


async def checked_grammar(spec: GenerationSpec, served: ServedModel) -> CheckedGrammar | None:
    """The grammar as llguidance takes it; it and the budget of thoughts fit all other masks."""
    constraints, checked = spec.constraints, None
    if constraints.grammar is not None:
        checked = await served.grammars.check(constraints.grammar)
        if constraints.after:  # the first token need not be one of the grammar's
            checked = msgspec.structs.replace(checked, first=b"\xff" * len(checked.first))
    masks = spec.params, checked, constraints.budget, served.info
    if checked is not None and len(spec.params.allowed_token_ids or ()) > INLINE_IDS:
        await asyncio.to_thread(check_masks, *masks)
    else:
        check_masks(*masks)
    return checked


def check_masks(
    params: SamplingParams,
    grammar: CheckedGrammar | None,
    budget: ThinkingBudget | None,
    info: EngineInfo,
) -> None:
    """Raise a 400 where masks leave out what ends thoughts, or a grammar cannot begin, or end."""
    allowed, banned = params.allowed_token_ids, _banned(params)
    if budget is not None:
        words = "out an id of the marker that ends thoughts at their budget: "
        words += ", ".join(map(str, budget.end))
        if allowed is not None and not set(allowed).issuperset(budget.end):
            raise _leaves("allowed_token_ids", words)
        if not banned.isdisjoint(budget.end):
            raise _leaves("bad_words", words)
    if grammar is None:
        return
    ends = [i for i in info.eos_token_ids if allowed is None or i in allowed]
    if not set(ends) - banned:
        words = "none of the ids that end a finished grammar: "
        words += ", ".join(map(str, info.eos_token_ids))
        raise _leaves("bad_words" if ends else "allowed_token_ids", words)
    if params.min_tokens:
        banned.update(params.stop_token_ids)
    bits = np.unpackbits(np.frombuffer(grammar.first, dtype=np.uint8), bitorder="little")
    first = np.flatnonzero(bits[: info.vocab_size]).tolist()
    if banned.issuperset(first if allowed is None else set(allowed).intersection(first)):
        param = "min_tokens" if allowed is None and not params.bad_words else "bad_words"
        param = param if allowed is None else "allowed_token_ids"
        raise _leaves(param, "no token that the grammar may begin with")


def check_some_token_is_left(params: SamplingParams, info: EngineInfo) -> None:
    """Raise a 400 where masks that hold from the first token on leave no token to draw."""
    allowed, masked = params.allowed_token_ids, _banned(params)
    if params.min_tokens:
        masked.update(params.stop_token_ids)
    if allowed is None and len(masked) < info.vocab_size:
        return
    if masked.issuperset(range(info.vocab_size) if allowed is None else allowed):
        param = "bad_words" if allowed is None else "allowed_token_ids"
        names = "bad_words, or ends of text that min_tokens masks"
        raise _leaves(param, f"no token to draw: all are in {names}")


def _banned(params: SamplingParams) -> set[int]:
    return {word[0] for word in params.bad_words if len(word) == 1}


def _leaves(param: str, words: str) -> ApiError:
    return bad_request(param, f"{param} leaves {words}", "no_token_allowed")


def bad_words(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word, alone and after a space, as vLLM has them; raises `ApiError`."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        inside = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        if not inside:
            reason = "which has no tokens: white space before a word does not count"
            raise bad_request("bad_words", f"bad_words holds {word!r}, {reason}")
        found[inside] = None
        if spaced and spaced[0] != inside[0] and len(spaced) == len(inside):
            found[spaced] = None
    return tuple(found)
