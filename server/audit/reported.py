"""Raw logprobs that a reply reports of its drawn tokens, in whichever of the forms it has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine.audit.drawn import Reported
from server.audit.joined import Json
from server.audit.parameters import RefusedError


def reported_logprobs(
    body: Json, choice: Json, output: Sequence[int], default_mode: str
) -> list[Reported] | None:
    """What a choice reports at each drawn token: of it, of top tokens and of explicit ids.

    Args:
        body: of the request.
        choice: of the reply, with lists in place of packed arrays (`server.audit.joined`).
        output: ids of the drawn tokens.
        default_mode: the `logprobs_mode` of requests that name none.

    Returns:
        None where nothing was asked for, or values of another mode or rounded ones.

    Raises:
        RefusedError: it does not report what was asked for.
        LookupError, TypeError, ValueError: a field is not what the API has there.
    """
    shown = choice.get("logprobs")
    if not isinstance(shown, dict):
        if output and body.get("logprobs") is not None and body["logprobs"] is not False:
            raise RefusedError("it has no logprobs, which were asked for")
        return None
    mode = body.get("logprobs_mode") or default_mode
    if shown.get("mode", mode) != mode:
        raise RefusedError(f"its logprobs are {shown['mode']}, and {mode} were asked for")
    if mode != "raw_logprobs" or body.get("logprobs_dtype") not in (None, "float32"):
        return None
    if isinstance(shown.get("content"), list):
        rows = _of_chat(shown, output)
    else:
        rows = _of_columns(shown, output, len(output) if body.get("echo") else None)
    _add_explicit(rows, choice.get("logprob_token_ids"))
    for row in rows:
        if not all(math.isfinite(value) or value == -math.inf for _, value in row):
            raise RefusedError("its logprobs hold NaN or Infinity")
    return rows


def _of_columns(shown: Json, output: Sequence[int], count: int | None) -> list[Reported]:
    """Those of a completion, or of packed arrays: fields of one item a token.

    Args:
        count: how many items there are of drawn tokens, after those of others; None for all.
    """
    own_ids = _last(shown.get("token_ids", output), count)
    rows = _chosen(output, own_ids, _last(shown["token_logprobs"], count))
    ids, values = shown.get("top_token_ids") or (), shown.get("top_logprobs") or ()
    for row, top_ids, tops in zip(rows, _last(ids, count), _last(values, count), strict=False):
        listed = tops.values() if isinstance(tops, dict) else tops
        row += [(int(token), float(value)) for token, value in zip(top_ids, listed, strict=True)]
    return rows


def _of_chat(shown: Json, output: Sequence[int]) -> list[Reported]:
    """Those of a chat: every token, and the top tokens of those of the content."""
    tokens, content = shown["tokens"], shown["content"]
    own_ids, values = ([token[key] for token in tokens] for key in ("token_id", "logprob"))
    rows = _chosen(output, own_ids, values)
    inside = [row for row, token in zip(rows, tokens, strict=True) if token["part"] == "content"]
    if len(inside) == len(content):  # else some lie there in part, and which is not said
        for row, entry in zip(inside, content, strict=True):
            tops = (entry, *entry["top_logprobs"])
            row += [(int(top["token_id"]), float(top["logprob"])) for top in tops]
    return rows


def _chosen(output: Sequence[int], own_ids: Sequence[Any], values: Sequence[Any]) -> list[Reported]:
    """Each drawn token's value, which is also that of the id beside it: they should be one."""
    if not len(values) == len(own_ids) == len(output):
        raise RefusedError(f"it has {len(values)} logprobs for {len(output)} tokens")
    triples = zip(output, own_ids, values, strict=True)
    return [[(token, float(value)), (int(own), float(value))] for token, own, value in triples]


def _add_explicit(rows: list[Reported], explicit: Json | None) -> None:
    """Add the values of `logprob_token_ids`, a row of them a token."""
    if explicit is None:
        return
    ids, values = explicit["token_ids"], explicit["logprobs"]
    if len(values) != len(rows):
        raise RefusedError(f"it has logprob_token_ids of {len(values)} for {len(rows)} tokens")
    for row, own in zip(rows, values, strict=True):
        row += [(int(token), float(value)) for token, value in zip(ids, own, strict=True)]


def _last(items: Sequence[Any], count: int | None) -> Sequence[Any]:
    return items if count is None else items[max(0, len(items) - count) :]
