"""Pairs of queries and documents scored by the model that is served, for every endpoint that does.

A model ranks where its name is known to, or `--rerank-template` says how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from server.context import Context
from server.endpoints.run_scoring import run_scoring
from server.errors import ApiError, bad_request
from server.http.account import GenerationReport, account_of
from server.http.disconnect import CancelOnDisconnect
from server.scoring.labels import Float64Array
from server.scoring.rerankers import Pair
from server.text.tokenizer import INLINE_CHARS, Tokenizer


async def rank(
    pairs: Sequence[Pair],
    instruction: str | None,
    *,
    field: str,
    max_document_tokens: int | None = None,
    reply_id: str,
    model: str | None,
    request: Request,
    context: Context,
) -> tuple[Float64Array, dict[str, Any]]:
    """The raw score of every pair, and the tokens as usage; raises `ApiError`.

    Args:
        field: the request's field of documents, for errors.
        model: the checked name of the model or adapter that is asked.
    """
    reranker = context.reranker
    if not reranker.is_known:
        raise bad_request(
            "model",
            "the model is no reranker that is known by its name: start the server with "
            "--rerank-template",
        )
    num_chars = sum(len(pair.query) + len(pair.document) for pair in pairs)
    if num_chars <= INLINE_CHARS:
        spec = reranker.spec(pairs, instruction, max_document_tokens)
    else:
        at, least = _least_tokens(pairs, max_document_tokens, context.tokenizer)
        if least > context.info.max_model_len:
            raise _too_long(field, at, f"at least {least}", context)
        spec = await asyncio.to_thread(reranker.spec, pairs, instruction, max_document_tokens)
    total = len(spec.query) + len(spec.items.token_ids)
    if spec.longest > context.info.max_model_len:
        raise _too_long(field, int(spec.items.lens.argmax()), str(spec.longest), context)
    if total > context.config.max_scoring_tokens:
        raise _too_many(field, total, context)
    account = account_of(request.scope)
    with CancelOnDisconnect(request.receive):
        scores = await run_scoring(spec.request, total, context, model=model)
    account.report = lambda: GenerationReport(
        context.config.model_names[0], reply_id, total, scores.num_cached
    )
    details = {"cached_tokens": scores.num_cached}
    usage = {"prompt_tokens": total, "total_tokens": total, "prompt_tokens_details": details}
    return reranker.raw_scores(spec, scores), usage


def _least_tokens(
    pairs: Sequence[Pair], max_document_tokens: int | None, tokenizer: Tokenizer
) -> tuple[int, int]:
    """The longest pair's index and a lower bound of its tokens, known without encoding."""

    def kept(pair: Pair) -> str:
        return pair.query if max_document_tokens is not None else pair.query + pair.document

    sizes = [len(pair.query) + len(pair.document) for pair in pairs]
    at = sizes.index(max(sizes))
    return at, tokenizer.min_tokens(kept(pairs[at]))


def _too_long(field: str, at: int, got: str, context: Context) -> ApiError:
    return bad_request(
        field,
        f"query and {field}[{at}] must fit into the context of {context.info.max_model_len} tokens "
        f"(--max-model-len), got {got} tokens",
        "context_length_exceeded",
    )


def _too_many(field: str, total: int, context: Context) -> ApiError:
    return bad_request(
        field,
        f"{field} must have at most {context.config.max_scoring_tokens} tokens together "
        f"(--max-scoring-tokens), got {total}",
        "too_many_tokens",
    )
