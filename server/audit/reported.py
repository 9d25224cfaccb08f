"""Raw logprobs that a reply reports of its drawn tokens, in whichever of the forms it has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine.audit.drawn import Reported
from server.audit.joined import Json
from server.audit.parameters import Body, RefusedError


def reported_logprobs(
    body: Body, choice: Json, output: Sequence[int], default_mode: str
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
    shown, explicit = choice.get("logprobs"), choice.get("logprob_token_ids")
    for is_asked, field in ((body.num_top, shown), (body.logprob_token_ids, explicit)):
        if output and is_asked is not None and not isinstance(field, dict):
            raise RefusedError("it has no logprobs, which were asked for")
    if not output or (shown is None and explicit is None):
        return None
    mode = body.logprobs_mode or default_mode
    if shown is not None and shown.get("mode", mode) != mode:
        raise RefusedError(f"its logprobs are {shown['mode']}, and {mode} were asked for")
    if _is_rounded(shown, explicit):
        if body.logprobs_dtype in (None, "float32"):
            raise RefusedError("its logprobs are rounded, which was not asked for")
        return None
    rows: list[Reported] = [[] for _ in output]
    if shown is not None and isinstance(shown.get("content"), list):
        rows = _of_chat(shown, output, body.num_top or 0)
    elif shown is not None:
        rows = _of_columns(shown, output, body)
    if explicit is not None:
        _add_explicit(rows, explicit, body.logprob_token_ids)
    for row in rows:
        if not all(math.isfinite(value) or value == -math.inf for _, value in row):
            raise RefusedError("its logprobs hold NaN or Infinity")
    return rows if mode == "raw_logprobs" else None


def _is_rounded(shown: Json | None, explicit: Json | None) -> bool:
    """Whether values are packed in 16 bits, which are no lists."""
    values = shown["token_logprobs"] if shown and "token_logprobs" in shown else None
    return isinstance(values, dict) or isinstance((explicit or {}).get("logprobs"), dict)


def _of_columns(shown: Json, output: Sequence[int], body: Body) -> list[Reported]:
    """Those of a completion, or of packed arrays: fields of one item a token, echoed ones first."""
    count = len(output) if body.echoes_prompt else None
    own_ids = _last(shown.get("token_ids", output), count)
    rows = _chosen(output, own_ids, _last(shown["token_logprobs"], count))
    num_top, none = body.num_top or 0, [()] * len(rows)
    ids, values = shown.get("top_token_ids") or none, shown.get("top_logprobs") or none
    listed = zip(rows, _last(ids, count), _last(values, count), strict=True)
    for row, top_ids, tops in listed:
        _check_top(top_ids, num_top)
        own = tops.values() if isinstance(tops, dict) else tops
        row += [(int(token), float(value)) for token, value in zip(top_ids, own, strict=True)]
    return rows


def _of_chat(shown: Json, output: Sequence[int], num_top: int) -> list[Reported]:
    """Those of a chat: every token, and the top tokens of those of the content."""
    tokens, content = shown["tokens"], shown["content"]
    own_ids, values = ([token[key] for token in tokens] for key in ("token_id", "logprob"))
    rows = _chosen(output, own_ids, values)
    inside = [row for row, token in zip(rows, tokens, strict=True) if token["part"] == "content"]
    if len(content) < len(inside):
        raise RefusedError(f"it has {len(content)} entries for {len(inside)} tokens of content")
    if len(content) == len(inside):  # else some lie there in part, and which is not said
        for row, entry in zip(inside, content, strict=True):
            _check_top(entry["top_logprobs"], num_top)
            tops = (entry, *entry["top_logprobs"])
            row += [(int(top["token_id"]), float(top["logprob"])) for top in tops]
    return rows


def _check_top(tops: Sequence[Any], num_top: int) -> None:
    if len(tops) < num_top:
        raise RefusedError(f"it has {len(tops)} top tokens where {num_top} were asked for")


def _chosen(output: Sequence[int], own_ids: Sequence[Any], values: Sequence[Any]) -> list[Reported]:
    """Each drawn token's value, which is also that of the id beside it: they should be one."""
    if not len(values) == len(own_ids) == len(output):
        raise RefusedError(f"it has {len(values)} logprobs for {len(output)} tokens")
    triples = zip(output, own_ids, values, strict=True)
    return [[(token, float(value)), (int(own), float(value))] for token, own, value in triples]


def _add_explicit(rows: list[Reported], explicit: Json, asked: Sequence[int] | None) -> None:
    """Add the values of `logprob_token_ids`, a row of them a token."""
    ids, values = explicit["token_ids"], explicit["logprobs"]
    if asked is not None and list(ids) != list(asked):
        raise RefusedError("its logprob_token_ids are not those that were asked for")
    if len(values) != len(rows):
        raise RefusedError(f"it has logprob_token_ids of {len(values)} for {len(rows)} tokens")
    for row, own in zip(rows, values, strict=True):
        row += [(int(token), float(value)) for token, value in zip(ids, own, strict=True)]


def _last(items: Sequence[Any], count: int | None) -> Sequence[Any]:
    return items if count is None else items[max(0, len(items) - count) :]
