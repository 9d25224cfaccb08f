"""Pieces as reply objects, and which replies are written off the event loop."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from engine.arrays import LogprobArrays
from engine.messages.request import PromptLogprobsParams
from engine.messages.step_output import Finish, PromptLogprobs
from server.generation.choice import Piece, ReplyChoice
from server.generation.form import ReplyForm
from server.generation.logprob_queue import LonePosition
from server.generation.prepare import PreparedRequest
from server.generation.prompts import Prompt
from server.generation.render import AHEAD_TOKENS, INLINE_VALUES, Renderer
from server.work.worker import Worker
from tests.fake_values import score, value_row
from tests.server.generation.pieces import SERVED, entry, form, reply_choice, spec, values
from tests.server.slowness import slowness
from tests.server.waits import LIMIT_S, longest_wait


def prepared(wanted: ReplyForm, *texts: str, n: int = 1) -> PreparedRequest:
    prompts = [
        Prompt(np.array(list(text.encode()), dtype=np.int32), text, 16) for text in texts or ("ab",)
    ]
    return PreparedRequest(
        spec=spec(wanted, n=n),
        served=SERVED,
        created=1,
        fingerprint=SERVED.fingerprint_of("m"),
        prompts=prompts,
        grammar=None,
        ignored_keywords=[],
        emit_interval=1,
    )


def rendered(wanted: ReplyForm, piece: Piece, prompt: str = "ab") -> dict[str, Any]:
    made: dict[str, Any] = orjson.loads(
        orjson.dumps(Renderer(prepared(wanted, prompt)).choice(3, 0, piece))
    )
    return made


def piece(text: str = "", logprobs: LogprobArrays | None = None, **changes: Any) -> Piece:
    neutral: dict[str, Any] = {
        "first": True,
        "token_ids": list(text.encode()),
        "origins": [],
        "starts": list(range(len(text.encode()))),
        "values": logprobs,
        "prompt_logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "weight_versions": (),
        "place": None,
    }
    return Piece(text=text, **{**neutral, **changes})


class TestChoice:
    def test_text_alone(self) -> None:
        assert rendered(form(), piece("xy", stop_reason="z", finish_reason="stop")) == {
            "index": 3,
            "text": "xy",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": "z",
        }

    def test_only_the_first_piece_tells_of_the_prompt(self) -> None:
        wanted = form(echo=True, return_token_ids=True, num_top=0)
        reported = PromptLogprobs(handle=1, start=1, logprobs=values(1, first=1))
        first = rendered(wanted, piece("xy", logprobs=values(2), prompt_logprobs=reported))
        assert (first["text"], first["prompt_token_ids"]) == ("abxy", [97, 98])
        assert first["logprobs"]["tokens"] == ["a", "b", "x", "y"]
        assert first["logprobs"]["text_offset"] == [0, 1, 2, 3]
        assert first["logprobs"]["ranks"] == [None, 1, 0, 1]
        later = rendered(wanted, piece("xy", first=False, starts=[5, 6], logprobs=values(2)))
        assert (later["text"], "prompt_token_ids" in later) == ("xy", False)
        assert later["logprobs"]["text_offset"] == [7, 8]  # after the echoed text

    def test_without_reported_values_the_prompt_has_none(self) -> None:
        wanted = form(num_prompt_top=1, prompt_explicit_ids=np.array([5]))
        assert rendered(wanted, piece("x"), "a")["prompt_logprobs"] == [None]
        explicit = rendered(wanted, piece("x"), "a")["prompt_logprob_token_ids"]
        assert explicit == {"start": 1, "token_ids": [5], "logprobs": []}

    @pytest.mark.parametrize("start", [2, 4, 6])
    def test_a_part_of_the_prompt_has_the_ids_of_its_own_positions(self, start: int) -> None:
        lists = np.arange(18, dtype=np.int32).reshape(6, 3)  # of positions 2 to 7
        asked = PromptLogprobsParams(start=2, id_lists=lists, by_part=True)
        wanted = form(prompt_explicit_ids=lists, prompt_logprobs=asked, stream=True)
        part = PromptLogprobs(
            handle=1, start=start, logprobs=values(2, num_explicit=3), is_part=True
        )
        made = rendered(wanted, piece(first=start == 2, prompt_logprobs=part), "abcdefgh")
        shown = made["prompt_logprob_token_ids"]
        assert shown["token_ids"] == lists[start - 2 : start].tolist()
        assert (shown["start"], shown["logprobs"]) == (start, [[0, 0, 0], [-1, -1, -1]])

    def test_origins_are_named(self) -> None:
        wanted = form(origins=True)
        assert rendered(wanted, piece("abcd", origins=[0, 1, 2, 3]))["token_origins"] == [
            *("drawn", "accepted", "recovered", "bonus")
        ]

    def test_explicit_ids(self) -> None:
        made = rendered(form(explicit_ids=(7, 8)), piece("xy", logprobs=values(2, num_explicit=2)))
        assert made["logprob_token_ids"] == {"token_ids": [7, 8], "logprobs": [[0, 0], [-1, -1]]}

    @pytest.mark.parametrize("packed", [False, True])
    def test_no_tokens_no_rows(self, packed: bool) -> None:
        wanted = form(explicit_ids=(7, 8), num_top=2, packed=packed)
        rows = rendered(wanted, piece())["logprob_token_ids"]["logprobs"]
        assert (rows["shape"] if packed else rows) == ([0, 2] if packed else [])


class TestChunksOfOneToken:
    """What a stream writes for a token with values is joined; it is what `choice` makes."""

    STEP = LogprobArrays(
        chosen=np.array([-1.5, -np.inf, -0.25], dtype=np.float32),
        ranks=np.array([2, 9, 1], dtype=np.int32),
        top_ids=np.array([[97, 98], [98, 97], [120, 97]], dtype=np.int32),
        top_logprobs=np.array([[-0.5, -1.5], [-0.1, -np.inf], [-0.25, -3]], dtype=np.float32),
        explicit=np.zeros((3, 0), dtype=np.float32),
        kept=np.zeros(3, dtype=np.float32),
    )

    @pytest.mark.parametrize("num_top", [0, 1, 2])
    @pytest.mark.parametrize("as_ids", [False, True])
    @pytest.mark.parametrize("i", range(3))
    def test_bytes_are_those_of_the_object(self, i: int, as_ids: bool, num_top: int) -> None:
        wanted = form(num_top=num_top, tokens_as_ids=as_ids, stream=True)
        at = slice(i, i + 1)
        values = LogprobArrays(
            chosen=self.STEP.chosen[at],
            ranks=self.STEP.ranks[at],
            top_ids=self.STEP.top_ids[at, :num_top],
            top_logprobs=self.STEP.top_logprobs[at, :num_top],
            explicit=self.STEP.explicit[at],
            kept=self.STEP.kept[at],
        )
        fields: dict[str, Any] = {"starts": [7], "finish_reason": None, "first": i == 0}
        renderer = Renderer(prepared(wanted))
        alone = piece("x", values, **fields)
        text = orjson.dumps(renderer.choice(3, 0, alone))
        placed = piece("x", place=LonePosition(self.STEP, i, num_top, 0), **fields)
        assert renderer.chunk(3, 0, alone) == renderer.chunk(3, 0, placed) == text

    def test_whatever_else_is_shown_stays(self) -> None:
        for more in ({"kept": True}, {"return_token_ids": True}, {"explicit_ids": (7,)}):
            wanted = form(num_top=1, stream=True, **more)
            place = LonePosition(values(1, num_explicit=1), 0, 1, 1)
            renderer = Renderer(prepared(wanted))
            one = piece("x", place=place, finish_reason=None, first=False)
            assert renderer.chunk(3, 0, one) == orjson.dumps(renderer.choice(3, 0, one))


class TestWrittenAhead:
    def fed(self, wanted: ReplyForm, count: int) -> ReplyChoice:
        choice = reply_choice(wanted)
        choice.feed(entry(b"a" * count, logprobs=values(count, num_top=1)))
        return choice

    def test_due_are_running_choices_with_enough_tokens(self) -> None:
        wanted = form(num_top=1)
        renderer = Renderer(prepared(wanted))
        enough, few = self.fed(wanted, AHEAD_TOKENS), self.fed(wanted, AHEAD_TOKENS - 1)
        ended = self.fed(wanted, AHEAD_TOKENS)
        ended.feed(entry(b"a", Finish.LENGTH, values(1, num_top=1)))
        assert renderer.due([enough, few, ended]) == [enough]

    @pytest.mark.parametrize("fields", [{}, {"num_top": 1, "packed": True}])
    def test_nothing_is_due_without_logprobs_as_json(self, fields: dict[str, Any]) -> None:
        wanted = form(**fields)
        renderer = Renderer(prepared(wanted))
        assert renderer.due([self.fed(wanted, 2 * AHEAD_TOKENS)]) == []

    def test_it_joins_the_rest(self) -> None:
        wanted = form(num_top=1, explicit_ids=(5,), return_token_ids=True)
        once, ahead = (Renderer(prepared(wanted)) for _ in range(2))
        for renderer in (once, ahead):
            choice = reply_choice(wanted)
            for i in range(4):
                finish = Finish.LENGTH if i == 3 else Finish.RUNNING
                choice.feed(entry(b"ab", finish, values(2, 1, 1, first=2 * i)))
                if renderer is ahead and i < 3:
                    renderer.write_ahead([choice])
            if renderer is once:
                want = renderer.reply([choice], {}, None)
            else:
                assert renderer.reply([choice], {}, None) == want
        made = orjson.loads(want)["choices"][0]
        assert made["logprobs"]["ranks"] == list(range(8))
        assert made["text"] == "ab" * 4


class TestIsBig:
    """Whether a reply is written off the event loop."""

    def ask(self, wanted: ReplyForm, num_choices: int, num_tokens: int) -> bool:
        choices = []
        for _ in range(num_choices):
            choice = reply_choice(wanted)
            arrays = values(num_tokens, wanted.num_top or 0, len(wanted.explicit_ids or ()))
            choice.feed(entry(b"a" * num_tokens, Finish.LENGTH, arrays))
            choices.append(choice)
        return Renderer(prepared(wanted)).is_big(choices)

    def test_logprobs_count(self) -> None:
        assert not self.ask(form(num_top=2), 1, 100)
        assert self.ask(form(num_top=2), 1, 200)
        assert self.ask(form(num_top=20), 1, 100)
        assert self.ask(form(explicit_ids=(1,) * 10), 1, 100)

    def test_so_do_choices_and_text(self) -> None:
        assert not self.ask(form(), 8, 16)
        assert self.ask(form(), INLINE_VALUES, 1)
        assert not self.ask(form(), 1, 4000)
        assert self.ask(form(), 1, 16_000)

    def test_so_does_what_each_choice_tells_of_its_prompt(self) -> None:
        wanted = form(echo=True, num_top=0, prompt_logprobs=PromptLogprobsParams())
        text = "a" * 100
        assert not Renderer(prepared(wanted, text)).prompt_is_big
        assert Renderer(prepared(wanted, text, text)).prompt_is_big
        assert Renderer(prepared(wanted, text, n=2)).prompt_is_big
        assert not Renderer(prepared(form(), text * 1000)).prompt_is_big


async def test_big_replies_are_rendered_off_the_event_loop() -> None:
    """50,000 values; the engine's own work is not in the window."""
    wanted, worker = form(num_top=50), Worker()
    arrays = LogprobArrays.concat([score(value_row(0), 97, 50, ())] * 1000)

    async def reply() -> httpx.Response:
        renderer, choice = Renderer(prepared(wanted)), reply_choice(wanted)
        choice.feed(entry(b"a" * 1000, Finish.LENGTH, arrays))
        assert renderer.is_big([choice])
        raw = await worker.run(renderer.reply, [choice], {}, None)
        return httpx.Response(200, content=raw)

    assert await longest_wait(reply) < LIMIT_S * slowness()
    assert len((await reply()).json()["choices"][0]["logprobs"]["tokens"]) == 1000
    worker.close()
