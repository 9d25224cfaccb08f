"""`/v1/decisions` over HTTP on a fake engine: fields, replies, what the engine gets, refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import numpy as np
import openai
import pytest
from openai.types import Decision

from engine.messages.step_output import Finish
from server.endpoints.decisions.reply_schema import DecisionsReply
from tests.fake_values import item_scores
from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, Site, in_process, nested, on_a_port
from tests.server.endpoints.decisions.asking import (
    CHOICE,
    PREDICATE,
    SCORE,
    body_of,
    post,
    prompts_of,
)

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


@pytest.fixture
async def chat() -> AsyncIterator[Site]:
    async with in_process(FakeEngine(max_model_len=2048), chat_template=TEMPLATE) as site:
        yield site


SAID = {"type": "output_text", "text": "I look."}


def text_part(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


def choice_of(*values: Any) -> dict[str, Any]:
    """A body's questions: one choice of these values."""
    return {"questions": [{**CHOICE, "choices": [{"value": value} for value in values]}]}


def said(part: Any) -> dict[str, Any]:
    """A body's input: one part of a user's."""
    return {"input": [{"role": "user", "content": [part]}]}


def json_part(data: Any) -> dict[str, Any]:
    return {"type": "input_json", "data": data}


async def test_answers_in_order_with_names_and_typed_values(chat: Site) -> None:
    reply = await post(chat)
    choice, predicate, score = reply["answers"]
    assert (choice["type"], choice["name"]) == ("choice", "team")
    assert [each["value"] for each in choice["probabilities"]] == ["billing", True]
    assert choice["choice"] in ("billing", True)
    assert predicate.keys() == {"type", "name", "probability"}
    assert predicate["name"] is None
    assert [(p["value"], p["label"]) for p in score["probabilities"]] == [(0, "low"), (1, "high")]
    assert score["score"] == pytest.approx(score["probabilities"][1]["probability"])
    assert reply["wording"] == "chat"
    DecisionsReply.model_validate(reply)
    Decision.model_validate(reply, strict=True)


async def test_every_question_is_a_prompt_behind_the_shared_state(chat: Site) -> None:
    reply = await post(chat, input="It is late.\n" * 40)
    first, second, third = prompts_of(chat)
    state = "<user>" + "It is late.\n" * 40
    assert first == (
        f"{state}\n\nAnswer with the letters of one option only.\n"
        'A: "billing" - payments\nB: true\nQuestion: Which team?\n<assistant>'
    )
    assert second.startswith(f"{state}\n\nAnswer with yes or no only.\nQuestion: They are angry.")
    assert third.startswith(
        f"{state}\n\nAnswer with the number of one level only.\n0: low\n1: high"
    )
    asked = chat.engine.scored[-1]
    assert len(asked.query_token_ids) >= len(state)
    usage = reply["usage"]
    assert usage["input_tokens"] == len(asked.query_token_ids) + len(asked.item_token_ids)
    assert usage["input_tokens_details"]["cached_tokens"] == 16
    assert (usage["output_tokens"], usage["total_tokens"]) == (0, usage["input_tokens"])


async def test_a_conversation_is_shown_as_what_was_said(chat: Site) -> None:
    items = [
        {"role": "developer", "content": "Be fair."},
        {"role": "user", "content": [text_part("Where is it?")]},
        {"role": "assistant", "content": [SAID], "phase": "commentary"},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"id": 7}'},
        {"type": "function_call_output", "call_id": "c1", "output": "in Rome"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [text_part("a b")]},
        {"role": "user", "content": [{"type": "input_json", "data": {"n": [1, 2]}}]},
    ]  # fmt: skip
    await post(chat, input=items, questions=[PREDICATE])
    assert prompts_of(chat)[0].startswith(
        "<system>Be fair.\n<user>user: Where is it?\nassistant: I look.\n"
        'assistant calls find: {"id": 7}\nfind returns: in Rome\n'
        'assistant calls sh: ls\nsh returns: a b\nuser: {"n":[1,2]}\n\nAnswer with'
    )


async def test_diagnostics(chat: Site) -> None:
    reply = await post(chat, questions=[CHOICE], diagnostics=True, permute=2, seed=5)
    found = reply["answers"][0]["diagnostics"]
    assert [each["order"] for each in found["orders"]] == [[0, 1], [1, 0]]
    for each in found["orders"]:
        known = np.exp(each["logprobs"]).sum() + np.exp(each["other_logprob"])
        assert known == pytest.approx(1, abs=1e-5)
        assert each["best_other"]["token_id"] not in (ord("A"), ord("B"))
    assert 0 <= found["label_mass"] <= 1
    assert found["spread"] >= 0
    assert chat.engine.scored[-1].num_read.tolist() == [1, 1]
    assert "diagnostics" not in (await post(chat))["answers"][0]


async def test_a_prior_asks_without_the_state(chat: Site) -> None:
    reply = await post(chat, questions=[PREDICATE], prior="content_free")
    asked = chat.engine.scored[-2:]
    prompts = {bytes([*each.query_token_ids, *each.item_token_ids]) for each in asked}
    size = chat.engine.info.block_size
    in_full_blocks = [len(each.query_token_ids) // size * size for each in asked]
    details = reply["usage"]["input_tokens_details"]
    assert min(in_full_blocks) > 0
    assert details["cached_tokens"] + details["cache_write_tokens"] == sum(in_full_blocks)
    assert any(prompt.startswith(b"<user>Answer with") for prompt in prompts)
    assert any(prompt.startswith(b"<user>It is late.\n\nAnswer with") for prompt in prompts)


async def test_a_prior_divides_what_is_read_with_the_state(chat: Site) -> None:
    """Each label by the same label without the state; the mass of the labels is with it."""
    asks: dict[str, Any] = {"questions": [PREDICATE], "permute": 1, "diagnostics": True}
    [plain] = (await post(chat, **asks))["answers"]
    [found] = (await post(chat, **asks, prior="content_free"))["answers"]
    by_length = sorted(chat.engine.scored[-2:], key=lambda each: len(each.query_token_ids))
    without, with_state = [item_scores(each).values.astype(np.float64) for each in by_length]
    ratio = with_state - np.where(np.isneginf(without), 0.0, without)
    # The labels' bytes are y, e, s and n, o: rows hold the first bytes, then o, e and s.
    yes, no = ratio[0, 0] + ratio[2, 0] + ratio[3, 0], ratio[0, 1] + ratio[1, 0]
    assert found["probability"] == pytest.approx(1 / (1 + np.exp(no - yes)), rel=1e-5)
    assert found["diagnostics"]["label_mass"] == plain["diagnostics"]["label_mass"]


async def test_options_themselves_as_labels(chat: Site) -> None:
    choices = [{"value": "pay"}, {"value": "payout"}, {"value": "no"}]
    await post(chat, labels="options", questions=[{**CHOICE, "choices": choices}])
    branches = chat.engine.scored[-1].branches
    assert branches is not None
    parts = np.split(branches.token_ids, np.cumsum(branches.lens)[:-1])
    # "pay" begins "payout", so it is ended by what follows a reply in the template.
    assert [bytes(part.tolist()) for part in parts] == [b"n", b"payou"]


async def test_keys_and_salts_part_the_cache(chat: Site) -> None:
    async def salt(**changes: Any) -> str:
        await post(chat, questions=[PREDICATE], **changes)
        return chat.engine.scored[-1].cache_salt

    explicit = {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}
    assert await salt() == ""
    assert await salt(cache_salt="s") == "s", "as every other endpoint has it"
    pairs = list(product(["", "a", "\0", "a\0b", "\0a", "1\0a", "\0001\0a"], repeat=2))
    parted = [await salt(cache_salt=first, prompt_cache_key=key) for first, key in pairs]
    assert len(set(parted)) == len(pairs)
    assert await salt(**explicit) != await salt(**explicit), "nothing is reused"
    part = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert await salt(input=[{"role": "user", "content": [part]}], **explicit) == ""


async def test_a_model_without_a_template_is_asked_in_plain_words(site: Site) -> None:
    engine = FakeEngine(max_model_len=2048)
    async with in_process(engine) as plain:
        reply = await post(plain, questions=[PREDICATE])
        assert reply["wording"] == "plain"
        assert prompts_of(plain) == [
            "It is late.\n\nAnswer with yes or no only.\nQuestion: They are angry.\nAnswer:"
        ]
        assert engine.scored[-1].id_lists.tolist()[0][0] == ord(" ")


async def test_a_template_of_the_operator_s(site: Site) -> None:
    wording = "{{ state }}|{{ question }}|{{ answers | join('/') }}"
    async with in_process(
        FakeEngine(max_model_len=2048), chat_template=TEMPLATE, decision_template=wording
    ) as own:
        await post(own, questions=[PREDICATE])
        assert prompts_of(own) == ["<user>It is late.|They are angry.|yes/no\n<assistant>"]


async def test_metrics_count_decisions(chat: Site) -> None:
    await post(chat, permute=2)
    assert chat.metric("tailrace_decisions_total", type="choice") == 1
    assert chat.metric("tailrace_decisions_total", type="predicate") == 1
    assert chat.metric("tailrace_decision_labels_total") == 12
    assert chat.metric("tailrace_decision_label_mass_count") == 3
    assert chat.metric("tailrace_decision_cached_tokens_total") > 0


async def test_metrics_count_each_question_of_a_kind(chat: Site) -> None:
    await post(chat, questions=[PREDICATE, CHOICE, PREDICATE])
    assert chat.metric("tailrace_decisions_total", type="predicate") == 2
    assert chat.metric("tailrace_decisions_total", type="choice") == 1


@pytest.mark.parametrize(
    ("finish", "code"), [(Finish.NAN, "nan_logits"), (Finish.ERROR, "engine_error")]
)
async def test_a_failed_step_is_a_500(finish: Finish, code: str) -> None:
    engine = FakeEngine(max_model_len=2048)
    engine.scoring_finish = finish
    async with in_process(engine, chat_template=TEMPLATE) as site:
        assert (await post(site, 500))["code"] == code


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
Q = "questions[0]"
REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"questions": []}, "questions", "at least 1"),
    ({"questions": [PREDICATE] * 401}, "questions", "at most 400"),
    (choice_of("a"), f"{Q}.choices", "at least 2"),
    (choice_of(*map(str, range(256))), f"{Q}.choices", "at most 255"),
    (choice_of("a", "b", "a"), f"{Q}.choices", 'got "a" at [0] and [2]'),
    (choice_of(3, "b"), f"{Q}.choices[0].value", "must be a string, true or false, got 3"),
    ({"questions": [{**SCORE, "levels": [{"label": "x"}] * 11}]}, f"{Q}.levels", "at most 10"),
    ({"questions": [{**SCORE, "levels": [{"label": "x"}]}]}, f"{Q}.levels", "at least 2"),
    (choice_of(True, True), f"{Q}.choices", "got true at [0] and [1]"),
    ({"questions": None}, "questions", "list"),
    ({"questions": [{"instructions": "x"}]}, Q, "type"),
    ({"questions": [{"type": "box"}]}, Q, "predicate, choice, score"),
    ({"questions": [{"type": "predicate"}]}, Q, "needs instructions"),
    ({"questions": [{**PREDICATE, "instructions": " "}]}, f"{Q}.instructions", "empty"),
    ({"questions": [{**PREDICATE, "choices": []}]}, Q, "unknown field"),
    ({**choice_of("", "b"), "labels": "options"}, f"{Q}.choices[0]", "no tokens of its own"),
    (said(IMAGE), "input[0].content", "image"),
    ({"questions": [{**PREDICATE, "instructions": [IMAGE]}]}, f"{Q}.instructions", "image"),
    ({"input": ""}, "input", "must hold a text"),
    ({"input": []}, "input", "at least 1"),
    ({"input": [{"role": "system", "content": "x"}]}, "input", "besides the system's"),
    (
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
        "input[0].call_id",
        "(there is none)",
    ),
    (said(json_part(nested(34))), "input[0].content[0].data", "at most 32 levels"),
    (said(json_part({"a": [1] * 10001})), "input[0].content[0].data", "at most 10000 values"),
    (said(json_part({"a": "x" * (257 << 10)})), "input[0].content[0].data", "262144 bytes"),
    (said(json_part(5)), "input[0].content[0].data", "an object or a list of objects"),
    ({"input": "x" * 3000}, "input", "got 3"),
    ({"permute": 65}, "permute", "at most 64"),
    ({"permute": 0}, "permute", "at least 1"),
    ({"labels": "digits"}, "labels", "letters"),
    ({"qestions": 1}, "qestions", "did you mean 'questions'"),
]


@pytest.mark.parametrize(("changes", "param", "words"), REFUSALS)
async def test_refused(chat: Site, changes: dict[str, Any], param: str, words: str) -> None:
    error = await post(chat, 400, **changes)
    assert error["param"] == param, error
    assert words in error["message"], error


async def test_an_unknown_model_is_a_404(chat: Site) -> None:
    assert (await post(chat, 404, model="other"))["code"] == "model_not_found"


async def test_questions_times_orders_are_bounded() -> None:
    engine = FakeEngine(max_model_len=2048)
    async with in_process(engine, chat_template=TEMPLATE, max_scoring_tokens=2000) as site:
        await post(site)
        for changes in ({"permute": 64}, {"questions": [PREDICATE] * 400}):
            choices = [{"value": f"{i}"} for i in range(20)]
            questions = [{**CHOICE, "choices": choices}] * 4
            error = await post(site, 400, **({"questions": questions} | changes))
            assert error["param"] == "questions"
            assert "--max-scoring-tokens" in error["message"]


async def test_the_openai_package_sync_and_async() -> None:
    engine = FakeEngine(max_model_len=2048)
    async with on_a_port(engine, chat_template=TEMPLATE, api_keys=("k",)) as site:
        async with openai.AsyncOpenAI(
            base_url=f"{site.url}/v1", api_key="k", max_retries=0
        ) as client:
            decision = await client.decisions.create(**body_of())
            assert [answer.type for answer in decision.answers] == ["choice", "predicate", "score"]
            with pytest.raises(openai.BadRequestError, match="at least 1"):
                await client.decisions.create(model=MODEL, input="x", questions=[])
        async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="no") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.decisions.create(**body_of())
