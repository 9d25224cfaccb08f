"""Makes a scoring request ready: texts as ids, labels as a tree, items as one array."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import chain

import numpy as np

from engine.arrays import Int32Array
from engine.contracts.info import EngineInfo
from server.endpoints.scoring.schema import ScoringFields
from server.errors import ApiError, bad_request
from server.generation.served import ServedModel
from server.schema.ids import IdLists, check_vocab
from server.schema.model_name import check_model
from server.schema.priority import check_priority
from server.scoring.labels import Label, LabelError, LabelTree
from server.scoring.spec import ScoringSpec
from server.text.tokenizer import INLINE_CHARS, TEXT_CHARS, Tokenizer

ONE_LABEL = (
    "with one label and apply_softmax every score is 1: give more labels, or apply_softmax: false"
)


@dataclass(frozen=True, slots=True)
class PreparedScoring:
    """A scoring request as far as it is known before the engine is asked.

    Attributes:
        spec: what the engine is asked.
        num_prompt_tokens: tokens that are billed: the items, and the query once, or once for each
            item that comes before it.
        softmax: scores share the mass among the labels.
        warnings: what makes the scores say little.
    """

    reply_id: str
    created: int
    model: str
    spec: ScoringSpec
    num_prompt_tokens: int
    softmax: bool
    packed: bool
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Texts:
    """The query, items and labels of a request as ids."""

    query: Int32Array
    items: IdLists
    labels: list[Label]


async def prepare_scoring(
    body: ScoringFields, served: ServedModel, reply_id: str, *, softmax: bool
) -> PreparedScoring:
    """Check and convert a request; raises `ApiError` for what cannot be served.

    Args:
        softmax: whether softmax applies where the request does not say.
    """
    info, tokenizer = served.info, served.tokenizer
    model = check_model(body.model, served.config, served.engine.state)
    check_priority(body.priority, served.config)
    if (body.labels is None) == (body.label_token_ids is None):
        got = "neither" if body.labels is None else "both"
        words = f"give either labels or label_token_ids, got {got}"
        raise bad_request("labels, label_token_ids", words)
    num_chars = len(body.query) if isinstance(body.query, str) else 0
    num_chars += sum(TEXT_CHARS + len(item) for item in body.items if isinstance(item, str))
    if num_chars <= INLINE_CHARS:
        texts = _encode(body, tokenizer, info)
    else:
        texts = await asyncio.to_thread(_encode, body, tokenizer, info)
    tree = _tree(body, texts.labels, info)
    item_first = bool(body.item_first)
    _check_lengths(texts, tree, info)
    spec, num_prompt_tokens = _spec(texts, tree, item_first, body.priority or 0)
    softmax = softmax if body.apply_softmax is None else body.apply_softmax
    return PreparedScoring(
        reply_id=reply_id,
        created=int(time.time()),
        model=model,
        spec=spec,
        num_prompt_tokens=num_prompt_tokens,
        softmax=softmax,
        packed=body.logprobs_format == "packed",
        warnings=[ONE_LABEL] if softmax and len(texts.labels) == 1 else [],
    )


def _encode(body: ScoringFields, tokenizer: Tokenizer, info: EngineInfo) -> _Texts:
    """Turn query, items and labels into ids, each by itself."""

    def encode(param: str, text: str, special: bool = False) -> list[int]:
        if tokenizer.min_tokens(text) > info.max_model_len:
            raise _too_long(param, f"at least {tokenizer.min_tokens(text)}", info)
        token_ids = tokenizer.encode(text, add_special_tokens=special)
        if not token_ids:
            raise bad_request(param, f"{param} must not be empty, got a text without tokens")
        return token_ids

    query, items = body.query, body.items
    if isinstance(query, str):
        special = body.add_special_tokens is not False
        query = np.array(encode("query", query, special), dtype=np.int32)
    if not isinstance(items, IdLists):
        lists = [encode("items", text) if text else [] for text in items]
        lens = np.array([len(ids) for ids in lists], dtype=np.int32)
        items = IdLists(np.array(list(chain.from_iterable(lists)), dtype=np.int32), lens)
    labels = body.label_token_ids or [encode("labels", text) for text in body.labels or ()]
    return _Texts(query, items, [tuple(label) for label in labels])


def _tree(body: ScoringFields, labels: list[Label], info: EngineInfo) -> LabelTree:
    param = "labels" if body.label_token_ids is None else "label_token_ids"
    for label in labels:
        check_vocab(param, np.array(label, dtype=np.int32), info.vocab_size)
    try:
        return LabelTree.of(labels)
    except LabelError as error:
        raise bad_request(param, f"{param} {error}") from None


def _check_lengths(texts: _Texts, tree: LabelTree, info: EngineInfo) -> None:
    """Refuse what the context does not hold; nothing is ever cut off."""
    check_vocab("query", texts.query, info.vocab_size)
    check_vocab("items", texts.items.token_ids, info.vocab_size)
    shortest = min(int(texts.items.lens.min()), 1)
    if len(texts.query) + shortest > info.max_model_len:
        raise _too_long("query", f"{len(texts.query)} tokens before any item", info)
    longest = max(len(branch) for branch, _ in tree.branches)
    at = int(texts.items.lens.argmax())
    total = len(texts.query) + int(texts.items.lens[at]) + longest
    if total > info.max_model_len:
        words = f"query and items[{at}] of {total} tokens together"
        if longest:
            words += f", {longest} of a label's among them"
        raise _too_long("items", words, info)


def _too_long(param: str, words: str, info: EngineInfo) -> ApiError:
    return bad_request(
        param,
        f"{param} must fit into the context of {info.max_model_len} tokens (--max-model-len), "
        f"got {words}",
        "context_length_exceeded",
    )


def _spec(
    texts: _Texts, tree: LabelTree, item_first: bool, priority: int
) -> tuple[ScoringSpec, int]:
    """What the engine is asked, and the number of prompt tokens that are billed."""
    query, items = texts.query, texts.items
    num_items = len(items.lens)
    num_prompt_tokens = len(query) * (num_items if item_first else 1) + len(items.token_ids)
    if item_first:
        items, query = _joined(items, end=query), query[:0]
    elif not items.lens.all():  # the engine reads positions of items only
        items, query = _joined(items, start=query[-1:]), query[:-1]
    tree_of_item = np.zeros(num_items, dtype=np.int64)
    return ScoringSpec(query, items, [tree], tree_of_item, priority), num_prompt_tokens


_NO_IDS = np.zeros(0, dtype=np.int32)


def _joined(items: IdLists, start: Int32Array = _NO_IDS, end: Int32Array = _NO_IDS) -> IdLists:
    """Make each item begin and end with the same tokens."""
    whole = np.split(items.token_ids, np.cumsum(items.lens)[:-1])
    parts = [part for item in whole for part in (start, item, end)]
    return IdLists(np.concatenate(parts), (items.lens + len(start) + len(end)).astype(np.int32))
