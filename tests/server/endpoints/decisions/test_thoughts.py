"""Decisions of a model that thinks first, on a fake engine: what it draws is what is read after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.contracts.adapters import NamedAdapter
from engine.contracts.control import EngineState
from engine.messages.request import Request, ScoringRequest
from engine.messages.step_output import Finish
from server.endpoints.decisions.reply_schema import DecisionsReply
from tests.collector import attributes, collecting
from tests.fakes import FakeEngine, says
from tests.server.conftest import MODEL, Site, in_process
from tests.server.endpoints.decisions.asking import CHOICE, PREDICATE, post, prompts_of

TURN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
TEMPLATE = TURN + "{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
THOUGHT = "It is late, so"
ENDED = f"{THOUGHT}\n</think>\n\nyes"


def thinker(script: str = ENDED, then: Any = None) -> FakeEngine:
    said = says(script) if then is None else says(script, then)
    return FakeEngine(said, max_model_len=2048)


def thought_about(site: Site) -> list[str]:
    """The prompts after which thoughts were drawn."""
    return [bytes(each.prompt_token_ids.tolist()).decode() for each in site.engine.requests]


async def test_labels_are_read_after_the_closed_thought() -> None:
    async with in_process(thinker(), chat_template=TEMPLATE) as site:
        asked: dict[str, Any] = {
            "questions": [CHOICE, PREDICATE],
            "seed": 7,
            "reasoning": {"budget": 40},
        }
        reply = await post(site, **asked)
        openings = thought_about(site)
        assert all(each.endswith("<assistant><think>\n") for each in openings)
        assert prompts_of(site) == [f"{each}{THOUGHT}\n</think>\n\n" for each in openings]
        for request in site.engine.requests:
            assert (request.params.seed, request.max_tokens) == (7, 40)
        num_drawn = 2 * len(f"{THOUGHT}\n</think>")
        usage = reply["usage"]
        assert usage["output_tokens"] == num_drawn
        assert usage["output_tokens_details"] == {"reasoning_tokens": num_drawn}
        assert usage["total_tokens"] == usage["input_tokens"] + num_drawn
        shared = len(site.engine.scored[-1].query_token_ids)
        assert usage["input_tokens"] == sum(map(len, openings)) - shared
        DecisionsReply.model_validate(reply)


async def test_an_adapter_that_is_replaced_meanwhile_does_not_answer() -> None:
    """The engine is asked for the version that thinks; where that has gone, it refuses."""
    first = NamedAdapter("sql", "/adapters/sql", 1, "01")
    engine = thinker()
    said = engine.script

    def replace(request: Request, choice: int, position: int) -> int | Finish:
        engine.state = EngineState(adapters=(first._replace(version=2, digest="02"),))
        engine.scoring_finish = Finish.ADAPTER
        return said(request, choice, position)

    engine.state, engine.script = EngineState(adapters=(first,)), replace
    async with in_process(engine, chat_template=TEMPLATE, enable_lora=True) as site:
        await post(site, 404, model="sql", reasoning={"budget": 40})
        asked: list[Request | ScoringRequest] = [*engine.requests, *engine.scored]
        assert {(each.adapter, each.adapter_digest) for each in asked} == {("sql", "01")}
        assert len(engine.scored) == 1
        engine.scoring_finish = Finish.LENGTH
        await post(site, model="sql")
        assert engine.scored[-1].adapter_digest == "", "asked once, whatever the name stands for"
        await post(site, model="sql", prior="content_free")
        assert [each.adapter_digest for each in engine.scored[-2:]] == ["02", "02"]


async def test_input_tokens_are_those_of_the_same_questions_without_thoughts() -> None:
    """But for what opens the thoughts."""
    async with in_process(thinker(), chat_template=TEMPLATE) as site:
        silent = await post(site)
        spoken = await post(site, reasoning={"budget": 40})
        opened = spoken["usage"]["input_tokens"] - silent["usage"]["input_tokens"]
        assert opened == 3 * len("<think>\n")
        assert silent["usage"]["output_tokens"] == 0


@pytest.mark.parametrize(
    ("script", "then", "thought"),
    [
        ("It goes on and on", Finish.LENGTH, "It goes on"),
        ("I stop here", None, "I stop here"),
        ("</think>", None, ""),
    ],
    ids=["the budget ends it", "the reply ends", "no thought"],
)
async def test_every_thought_is_closed(script: str, then: Any, thought: str) -> None:
    async with in_process(thinker(script, then), chat_template=TEMPLATE) as site:
        budget = len(thought) if then is not None else 40
        asked: dict[str, Any] = {"questions": [PREDICATE], "diagnostics": True}
        reply = await post(site, **asked, reasoning={"budget": budget})
        assert reply["answers"][0]["diagnostics"]["orders"][0]["thought"] == thought
        (prompt,) = prompts_of(site)
        assert prompt.endswith(f"<assistant><think>\n{thought}\n</think>\n\n")


async def test_each_order_has_its_own_thought_which_diagnostics_show() -> None:
    async with in_process(thinker(), chat_template=TEMPLATE) as site:
        asked: dict[str, Any] = {"questions": [CHOICE], "permute": 2, "diagnostics": True}
        reply = await post(site, **asked, reasoning={"budget": 40})
        assert len(thought_about(site)) == 2
        orders = reply["answers"][0]["diagnostics"]["orders"]
        assert [order["thought"] for order in orders] == [f"{THOUGHT}\n"] * 2
        silent = await post(site, **asked)
        assert "thought" not in silent["answers"][0]["diagnostics"]["orders"][0]


async def test_systemone_thinks_too() -> None:
    async with in_process(thinker(), chat_template=TEMPLATE) as site:
        body = {"model": MODEL, "state": "It is late.", "reasoning": {"budget": 40}}
        body |= {"questions": {"a": {"type": "noul", "instructions": "Is it?"}}}
        reply = await site.client.post("/v1/systemone", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["output_tokens"] == len(f"{THOUGHT}\n</think>")


async def test_traces_and_metrics_count_thoughts() -> None:
    with collecting() as collector:
        url = collector.url
        async with in_process(thinker(), chat_template=TEMPLATE, otlp_traces_endpoint=url) as site:
            await post(site, questions=[PREDICATE], reasoning={"budget": 40})
            assert site.context.traces is not None
            await asyncio.to_thread(site.context.traces.close)
            num_drawn = site.metric("tailrace_generation_tokens_total")
        (span,) = map(attributes, collector.spans)
    assert span["gen_ai.usage.output_tokens"] == num_drawn == len(f"{THOUGHT}\n</think>")
    assert span["tailrace.decisions.num_questions"] == 1


@pytest.mark.parametrize(
    ("template", "changes", "param", "words"),
    [
        (TEMPLATE, {"reasoning": {"budget": 0}}, "reasoning.budget", "at least 1"),
        (TEMPLATE, {"reasoning": {}}, "reasoning.budget", "budget"),
        (TEMPLATE, {"reasoning": {"effort": "low"}}, "reasoning.budget", "reasoning.effort"),
        (TEMPLATE, {"prior": "content_free"}, "reasoning", "left out with prior"),
        (TEMPLATE, {"reasoning": {"budget": 2040}}, "reasoning.budget", "in a context of 2048"),
        (TURN, {}, "reasoning", "has no thoughts by its chat template"),
        (TURN + "<think></think>", {}, "reasoning", "closes thoughts by its chat template"),
        (None, {}, "reasoning", "has no chat template"),
    ],
)
async def test_refused(
    template: str | None, changes: dict[str, Any], param: str, words: str
) -> None:
    async with in_process(thinker(), chat_template=template) as site:
        error = await post(site, 400, **{"reasoning": {"budget": 40}} | changes)
        assert (error["param"], words in error["message"]) == (param, True), error


async def test_thoughts_of_too_many_prompts_are_refused() -> None:
    async with in_process(thinker(), chat_template=TEMPLATE, max_choices_per_request=2) as site:
        error = await post(site, 400, reasoning={"budget": 4})
        assert error["param"] == "questions"
        assert "--max-choices-per-request" in error["message"]


async def test_a_thought_that_fails_fails_the_request() -> None:
    async with in_process(thinker("x", Finish.NAN), chat_template=TEMPLATE) as site:
        assert (await post(site, 500, reasoning={"budget": 4}))["code"] == "nan_logits"
        assert not site.engine.scored
