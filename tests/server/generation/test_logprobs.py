"""Logprobs in replies: the engine's values, aligned, collision-free, valid JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.arrays import LogprobArrays
from server.endpoints.completions.reply_schema import CompletionReply
from server.generation.logprobs import LogprobWriter
from server.text.json_fragments import MINUS_INFINITY, TokenFragments
from server.text.packed import unpacked
from tests.fake_values import VOCAB_SIZE, value_row
from tests.fakes import BOS, EOS, FakeEngine, byte_tokenizer, says
from tests.server.conftest import Site, in_process


def value(position: int, token_id: int) -> float:
    """What the fake engine says of a token after `position` others."""
    return float(np.maximum(value_row(position)[token_id], MINUS_INFINITY))


def near(given_value: float, position: int, token_id: int) -> bool:
    """Equal as float32: the reply holds the shortest decimal that rounds to it."""
    return bool(np.float32(given_value) == np.float32(value(position, token_id)))


class TestGenerated:
    async def test_columns(self, site: Site) -> None:
        reply = await site.complete(prompt="hello", max_tokens=6, logprobs=2)
        logprobs = reply["choices"][0]["logprobs"]
        assert logprobs["tokens"] == list("helloh")
        assert logprobs["token_ids"] == list(b"helloh")
        assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
        assert logprobs["bytes"] == [[byte] for byte in b"helloh"]
        assert logprobs["mode"] == "raw_logprobs"
        for i, token_id in enumerate(b"helloh"):
            assert near(logprobs["token_logprobs"][i], 5 + i, token_id)
            row = value_row(5 + i)
            assert logprobs["ranks"][i] == 1 + sum(
                (v, -t) > (row[token_id], -token_id) for t, v in enumerate(row)
            )
            ids, top = logprobs["top_token_ids"][i], logprobs["top_logprobs"][i]
            assert len(ids) == len(top) in (2, 3)
            assert token_id in ids
            for shown_id, shown in zip(ids, top.values(), strict=True):
                assert near(shown, 5 + i, shown_id)
            assert logprobs["token_logprobs"][i] in top.values()  # equal text, not just near

    async def test_zero_reports_the_chosen_alone(self, site: Site) -> None:
        reply = await site.complete(prompt="ab", max_tokens=1, logprobs=0)
        logprobs = reply["choices"][0]["logprobs"]
        assert logprobs["top_logprobs"] == [{"a": logprobs["token_logprobs"][0]}]
        assert logprobs["top_token_ids"] == [[97]]

    async def test_none_reports_nothing(self, site: Site) -> None:
        assert (await site.complete(prompt="ab"))["choices"][0]["logprobs"] is None

    async def test_nothing_generated(self, site: Site) -> None:
        reply = await site.complete(prompt="ab", max_tokens=0, logprobs=2)
        logprobs = reply["choices"][0]["logprobs"]
        assert [column for column in logprobs.values() if column] == ["raw_logprobs"]

    async def test_a_masked_token_is_a_finite_number(self, site: Site) -> None:
        reply = await site.complete(prompt="ab", max_tokens=1, logprob_token_ids=[263])
        assert reply["choices"][0]["logprob_token_ids"]["logprobs"] == [[MINUS_INFINITY]]

    async def test_mode_is_named_and_asked_for(self) -> None:
        async with in_process(logprobs_mode="raw_logits") as site:
            reply = await site.complete(prompt="ab", max_tokens=1, logprobs=0)
            assert reply["choices"][0]["logprobs"]["mode"] == "raw_logits"
            body = {"logprobs": 0, "logprobs_mode": "processed_logprobs"}
            reply = await site.complete(prompt="ab", max_tokens=1, **body)
            assert reply["choices"][0]["logprobs"]["mode"] == "processed_logprobs"
            assert site.engine.requests[-1].params.logprobs_mode == "processed_logprobs"

    async def test_tokens_as_ids(self, site: Site) -> None:
        body = {"prompt": "ab", "max_tokens": 2, "logprobs": 1, "return_tokens_as_token_ids": True}
        logprobs = (await site.complete(**body))["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["token_id:97", "token_id:98"]
        assert logprobs["text_offset"] == [0, 1]
        assert all(key.startswith("token_id:") for key in logprobs["top_logprobs"][0])

    async def test_neighbours_with_wider_tops_do_not_leak_in(self, site: Site) -> None:
        replies = await asyncio.gather(
            site.complete(prompt="ab", max_tokens=5, logprobs=1, logprob_token_ids=[5]),
            site.complete(prompt="ab", max_tokens=5, logprobs=9, logprob_token_ids=[6, 7, 8]),
            site.complete(prompt="ab", max_tokens=5),
        )
        alone = await site.complete(prompt="ab", max_tokens=5, logprobs=1, logprob_token_ids=[5])
        assert replies[0]["choices"] == alone["choices"]


class TestExplicitIds:
    async def test_as_asked_duplicates_too(self, site: Site) -> None:
        ids = [5, 263, 5, 0, VOCAB_SIZE - 1]
        reply = await site.complete(prompt="abc", max_tokens=3, logprob_token_ids=ids)
        explicit = reply["choices"][0]["logprob_token_ids"]
        assert explicit["token_ids"] == ids
        assert len(explicit["logprobs"]) == 3
        for i, row in enumerate(explicit["logprobs"]):
            assert all(near(v, 3 + i, t) for v, t in zip(row, ids, strict=True))
        assert reply["choices"][0]["logprobs"] is None

    async def test_with_logprobs_the_top_list_holds_them_too(self, site: Site) -> None:
        reply = await site.complete(
            prompt="abc", max_tokens=2, logprobs=1, logprob_token_ids=[5, 5, 6]
        )
        for ids in reply["choices"][0]["logprobs"]["top_token_ids"]:
            assert {5, 6} < set(ids)
            assert len(ids) == len(set(ids))

    async def test_max_tokens_zero_reports_on_the_next_token(self, site: Site) -> None:
        reply = await site.complete(prompt="abc", max_tokens=0, logprob_token_ids=[5, 6])
        choice = reply["choices"][0]
        (row,) = choice["logprob_token_ids"]["logprobs"]
        assert near(row[0], 3, 5)
        assert near(row[1], 3, 6)
        assert (choice["text"], choice["finish_reason"]) == ("", "length")
        assert reply["usage"]["completion_tokens"] == 0


class TestEcho:
    async def test_prompt_first_with_null(self, site: Site) -> None:
        body = {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 2}
        choice = (await site.complete(**body))["choices"][0]
        assert choice["text"] == "abcab"
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == list("abcab")
        assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
        for column in ("token_logprobs", "top_logprobs", "ranks", "top_token_ids"):
            assert logprobs[column][0] is None
        for i, token_id in enumerate(b"abcab"):
            assert i == 0 or near(logprobs["token_logprobs"][i], i, token_id)

    async def test_max_tokens_zero_has_the_prompt_s_length(self, site: Site) -> None:
        body = {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 0}
        logprobs = (await site.complete(**body))["choices"][0]["logprobs"]
        assert len(logprobs["token_logprobs"]) == 3

    async def test_without_logprobs(self, site: Site) -> None:
        choice = (await site.complete(prompt="abc", echo=True, max_tokens=1))["choices"][0]
        assert (choice["text"], choice["logprobs"]) == ("abca", None)
        assert site.engine.requests[-1].prompt_logprobs is None

    async def test_a_prompt_of_one_token(self, site: Site) -> None:
        body = {"prompt": "a", "echo": True, "logprobs": 1, "max_tokens": 0}
        logprobs = (await site.complete(**body))["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"] == [None]
        assert site.engine.requests[-1].prompt_logprobs is None
        with_default = await site.complete(**body, prompt_logprob_start=1)
        assert with_default["choices"][0]["logprobs"] == logprobs

    async def test_logprobs_from_a_position(self, site: Site) -> None:
        body = {"prompt": "abcd", "echo": True, "logprobs": 1, "max_tokens": 0}
        logprobs = (await site.complete(**body, prompt_logprob_start=3))["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"][:3] == [None] * 3
        assert near(logprobs["token_logprobs"][3], 3, ord("d"))

    async def test_special_tokens_that_the_tokenizer_added_are_not_in_the_text(self) -> None:
        async with in_process(with_bos=True) as site:
            body = {"prompt": "a<eos>b", "echo": True, "logprobs": 0, "max_tokens": 0}
            choice = (await site.complete(**body))["choices"][0]
        assert choice["text"] == "a<eos>b"  # as the client wrote it
        assert choice["logprobs"]["token_ids"] == [BOS, 97, EOS, 98]
        assert choice["logprobs"]["text_offset"] == [0, 0, 1, 6]

    async def test_of_ids_goes_by_skip_special_tokens(self, site: Site) -> None:
        body = {"prompt": [97, EOS, 98], "echo": True, "max_tokens": 0}
        assert (await site.complete(**body))["choices"][0]["text"] == "ab"
        shown = await site.complete(**body, skip_special_tokens=False)
        assert shown["choices"][0]["text"] == "a<eos>b"

    async def test_a_prompt_that_ends_within_a_character_does_not_leak(self, site: Site) -> None:
        reply = await site.complete(prompt=[97, 0xC3], max_tokens=2)
        assert reply["choices"][0]["text"] == "a\ufffd"


class TestPromptLogprobs:
    async def test_vllm_s_shape(self, site: Site) -> None:
        choice = (await site.complete(prompt="abc", prompt_logprobs=1))["choices"][0]
        null, *entries = choice["prompt_logprobs"]
        assert null is None
        for i, entry in enumerate(entries, start=1):
            chosen = entry[str(b"abc"[i])]
            assert chosen["decoded_token"] == "abc"[i]
            assert near(chosen["logprob"], i, b"abc"[i])
            best = int(value_row(i).argmax())
            assert entry[str(best)]["rank"] == 1

    async def test_start(self, site: Site) -> None:
        body = {"prompt": "abcd", "prompt_logprobs": 0, "prompt_logprob_start": 2}
        choice = (await site.complete(**body))["choices"][0]
        assert choice["prompt_logprobs"][:2] == [None, None]
        assert list(choice["prompt_logprobs"][2]) == [str(ord("c"))]

    async def test_explicit_ids(self, site: Site) -> None:
        body = {"prompt": "abcd", "prompt_logprob_token_ids": [5, 5, 263]}
        choice = (await site.complete(**body))["choices"][0]
        explicit = choice["prompt_logprob_token_ids"]
        assert (explicit["start"], explicit["token_ids"]) == (1, [5, 5, 263])
        assert len(explicit["logprobs"]) == 3
        assert all(near(row[0], 1 + i, 5) for i, row in enumerate(explicit["logprobs"]))
        assert choice["prompt_logprobs"] is None

    async def test_echo_and_prompt_logprobs_have_their_own_widths(self, site: Site) -> None:
        body = {"prompt": "abc", "echo": True, "logprobs": 3, "prompt_logprobs": 1}
        choice = (await site.complete(**body))["choices"][0]
        assert len(choice["logprobs"]["top_logprobs"][1]) in (3, 4)
        assert len(choice["prompt_logprobs"][1]) in (1, 2)

    async def test_ids_of_the_prompt(self, site: Site) -> None:
        choice = (await site.complete(prompt="ab", max_tokens=1, return_token_ids=True))["choices"][
            0
        ]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98], [97])


def _fragments() -> TokenFragments:
    tokenizer = byte_tokenizer()
    return TokenFragments(tokenizer.texts, tokenizer.raw)


def arrays_of(ids: list[int], values: list[float]) -> LogprobArrays:
    """One position whose top list is `ids`."""
    return LogprobArrays(
        chosen=np.array(values[:1], dtype=np.float32),
        ranks=np.array([1], dtype=np.int32),
        top_ids=np.array([ids], dtype=np.int32),
        top_logprobs=np.array([values], dtype=np.float32),
        explicit=np.zeros((1, 0), dtype=np.float32),
        kept=np.zeros(1, dtype=np.float32),
    )


class TestNames:
    writer = LogprobWriter(_fragments(), as_ids=False)

    def entry(self, ids: list[int], values: list[float]) -> dict[str, float]:
        columns = self.writer.with_values(np.array(ids[:1]), [0], arrays_of(ids, values), len(ids))
        assert json.loads(f"[{columns['top_token_ids']}]") == [ids]
        (entry,) = json.loads(f"[{columns['top_logprobs']}]")
        return dict(entry)

    def test_ids_with_one_text_never_collide(self) -> None:
        entry = self.entry([0x80, 65, 0x81, 0x82], [-3.0, -1.0, -0.5, -0.7])
        assert entry == {"token_id:128": -3.0, "A": -1.0, "\ufffd": -0.5, "token_id:130": -0.7}

    @given(st.lists(st.integers(0, 255), unique=True, min_size=1, max_size=30))
    def test_every_id_has_its_value(self, ids: list[int]) -> None:
        values = [-float(token_id) for token_id in ids]
        assert list(self.entry(ids, values).values()) == values

    @given(
        st.lists(st.integers(60, 140), unique=True, max_size=8),
        st.integers(60, 140),
        st.booleans(),
    )
    def test_one_position_is_written_as_it_is_among_several(
        self, top: list[int], token_id: int, as_ids: bool
    ) -> None:
        """Ids from 128 on are no whole characters here, and have one text."""
        values = [0.1 - place for place in range(len(top))]
        if values:
            values[-1] = float("-inf")
        chosen = values[top.index(token_id)] if token_id in top else -17.3
        one = msgspec.structs.replace(
            arrays_of(top, values), chosen=np.array([chosen], dtype=np.float32)
        )
        two = LogprobArrays.concat([one, one])
        writer = LogprobWriter(_fragments(), as_ids=as_ids)
        ids = np.array([token_id, token_id], dtype=np.int32)
        alone = writer.with_values(ids[:1], [3], one, len(top))
        among = writer.with_values(ids, [3, 3], two, len(top))
        assert {name: f"{text},{text}" for name, text in alone.items()} == among

    def test_rows_of_unequal_length(self) -> None:
        """Chosen and explicit ids are added where the top does not hold them, each once."""
        tops = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int32)
        arrays = LogprobArrays(
            chosen=np.array([-1, -9, -5], dtype=np.float32),
            ranks=np.array([1, 7, 1], dtype=np.int32),
            top_ids=tops,
            top_logprobs=-tops.astype(np.float32),
            explicit=np.full((3, 3), -4, dtype=np.float32),
            kept=np.zeros(3, dtype=np.float32),
        )
        columns = self.writer.with_values(
            np.array([1, 9, 5], dtype=np.int32), [0, 1, 2], arrays, 2, (4, 9, 4)
        )
        ids = json.loads(f"[{columns['top_token_ids']}]")
        assert ids == [[1, 2, 4, 9], [3, 4, 9], [5, 6, 4, 9]]
        tables = json.loads(f"[{columns['top_logprobs']}]")
        assert [list(table.values()) for table in tables] == [
            [-1, -2, -4, -4], [-3, -4, -9], [-5, -6, -4, -4]]  # fmt: skip


class TestPacked:
    body: ClassVar[dict[str, Any]] = {"prompt": "abc", "max_tokens": 4, "logprobs": 2,
                                      "logprobs_format": "packed"}  # fmt: skip

    @pytest.mark.parametrize("extra", [{}, {"echo": True}, {"echo": True, "max_tokens": 0}])
    async def test_holds_what_json_holds(self, site: Site, extra: dict[str, Any]) -> None:
        extra = {**extra, "logprob_token_ids": [5, 263], "prompt_logprobs": 1,
                 "prompt_logprob_token_ids": [7]}  # fmt: skip
        reply = await site.complete(**{**self.body, **extra})
        CompletionReply.model_validate(reply)
        choice = reply["choices"][0]
        plain = await site.complete(**{**self.body, **extra, "logprobs_format": "json"})
        wanted = plain["choices"][0]
        got, want = choice["logprobs"], wanted["logprobs"]
        start = got["start"]
        assert got["mode"] == want["mode"]
        for name in ("token_ids", "text_offset"):
            assert unpacked(got[name]).tolist() == want[name]
        for name in ("token_logprobs", "ranks"):
            assert want[name][:start] == [None] * start
            assert (unpacked(got[name]) == np.array(want[name][start:], np.float32)).all()
        ids, values = unpacked(got["top_token_ids"]), unpacked(got["top_logprobs"])
        assert ids.shape == values.shape == (len(want["token_ids"]) - start, 2)
        for i, table in enumerate(want["top_logprobs"][start:]):
            assert ids[i].tolist() == want["top_token_ids"][start + i][:2]
            assert values[i].tolist() == [np.float32(v) for v in list(table.values())[:2]]
        explicit = unpacked(choice["logprob_token_ids"]["logprobs"])
        shown = np.where(np.isneginf(explicit), MINUS_INFINITY, explicit)
        assert (shown == np.array(wanted["logprob_token_ids"]["logprobs"], np.float32)).all()
        assert explicit[0, 1] == -np.inf
        rows = choice["prompt_logprob_token_ids"]["logprobs"]
        assert unpacked(rows).shape == (2, 1)

    @pytest.mark.parametrize("start", [None, 1, 2, 3])
    @pytest.mark.parametrize("top", [0, 3])
    async def test_prompt_logprobs_have_one_shape(
        self, site: Site, start: int | None, top: int
    ) -> None:
        """JSON's positions, entries, values and ranks can be made of the packed arrays alone."""
        asked = {"prompt": "abcd", "prompt_logprobs": top, "prompt_logprob_start": start}
        body = {**self.body, **asked, "logprobs": top}
        packed = (await site.complete(**body))["choices"][0]
        plain = await site.complete(**body | {"logprobs_format": "json"})
        want = plain["choices"][0]["prompt_logprobs"]
        got = packed["prompt_logprobs"]
        assert set(got) == set(packed["logprobs"]) - {"text_offset"}  # read by the same code
        arrays = {name: unpacked(got[name]) for name in set(got) - {"start", "mode"}}
        assert arrays["token_ids"].tolist() == list(b"abcd")
        assert got["mode"] == "raw_logprobs"
        made: list[dict[str, tuple[float, int]] | None] = [None] * got["start"]
        for i, token_id in enumerate(arrays["token_ids"][got["start"] :].tolist()):
            entry = {str(token_id): (arrays["token_logprobs"][i], arrays["ranks"][i])}
            tops = zip(arrays["top_token_ids"][i], arrays["top_logprobs"][i], strict=True)
            for rank, (top_id, value) in enumerate(tops, start=1):
                entry.setdefault(str(top_id), (value, rank))
            made.append(entry)
        assert len(want) == 4
        assert want[0] is None
        assert made == [
            entry and {key: (np.float32(v["logprob"]), v["rank"]) for key, v in entry.items()}
            for entry in want
        ]

    async def test_a_joined_stream_has_the_same_arrays(self, site: Site) -> None:
        whole = (await site.complete(**self.body, echo=True))["choices"][0]["logprobs"]
        chunks = await site.stream(**self.body, echo=True)
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        assert [part["start"] for part in parts] == [whole["start"]] + [0] * (len(parts) - 1)
        for name in ("token_ids", "text_offset", "token_logprobs", "ranks", "top_logprobs"):
            joined = np.concatenate([unpacked(part[name]) for part in parts])
            assert (joined == unpacked(whole[name])).all()

    async def test_without_values(self, site: Site) -> None:
        body = {"prompt": "a", "max_tokens": 0, "echo": True, "prompt_logprobs": 2}
        choice = (await site.complete(**{**self.body, **body}))["choices"][0]
        assert choice["logprobs"]["start"] == 1
        assert unpacked(choice["logprobs"]["token_logprobs"]).shape == (0,)
        assert unpacked(choice["prompt_logprobs"]["top_logprobs"]).shape == (0, 2)


async def test_nan_in_a_reply_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    row = value_row(0)
    row[:] = np.nan
    monkeypatch.setattr("tests.fakes.value_row", lambda position: row)
    async with in_process(FakeEngine(says("hi"))) as site:
        error: dict[str, Any] = await site.refused(500, prompt="a", logprob_token_ids=[1])
        assert error["code"] == "nan_logits"
