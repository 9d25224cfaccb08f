"""Prompts: truncated on request, otherwise whole or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import BOS
from tests.server.conftest import Site, in_process


class TestTruncation:
    @pytest.mark.parametrize(
        ("body", "kept"),
        [
            ({"truncate_prompt_tokens": 2}, "ef"),
            ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, "ef"),
            ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "ab"),
            ({"truncate_prompt_tokens": 100}, "abcdef"),
        ],
    )
    @pytest.mark.parametrize("as_ids", [False, True])
    async def test_sides(self, site: Site, body: dict[str, Any], kept: str, as_ids: bool) -> None:
        prompt = list(b"abcdef") if as_ids else "abcdef"
        request = await site.submitted(prompt=prompt, **body)
        assert request.prompt_token_ids.tolist() == list(kept.encode())

    async def test_minus_one_leaves_room_for_max_tokens(self, site: Site) -> None:
        request = await site.submitted(prompt="x" * 1000, max_tokens=6, truncate_prompt_tokens=-1)
        assert len(request.prompt_token_ids) == 250

    async def test_the_beginning_of_text_survives(self) -> None:
        async with in_process(with_bos=True) as site:
            request = await site.submitted(prompt="abcdef", truncate_prompt_tokens=3)
            assert request.prompt_token_ids.tolist() == [BOS, *b"ef"]

    @pytest.mark.parametrize("keep", [0, 257])
    async def test_bounds(self, site: Site, keep: int) -> None:
        error = await site.refused(prompt="abc", truncate_prompt_tokens=keep)
        assert error["param"] == "truncate_prompt_tokens"
        assert f"got {keep}" in error["message"]
