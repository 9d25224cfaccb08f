"""The limit of a reply's tokens, within what the context leaves after the prompt."""

from __future__ import annotations

from server.errors import TOO_LONG, ClientNames, too_long


def fitting_max_tokens(
    max_tokens: int, prompt_len: int, limit: int, names: ClientNames, fits_context: bool
) -> int:
    """The limit of a choice after a prompt, in a context of `limit` tokens; raises `ApiError`.

    Args:
        fits_context: more than the context has room for is clipped, not refused.
    """
    room = limit - prompt_len
    if room < 0 or (room == 0 and max_tokens > 0):
        raise too_long(names["prompts"], str(prompt_len), limit)
    if max_tokens > room and not fits_context:
        words = f"must be at most {room} after a prompt of {prompt_len} tokens in a context of "
        raise names.refuse("max_tokens", f"{words}{limit}, got {max_tokens}", TOO_LONG)
    return min(max_tokens, room)
