"""Scoring over HTTP on a fake engine: both schemas, refusals, usage, ends."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest

from engine.messages.request import ScoringRequest
from engine.messages.step_output import Finish
from server.endpoints.scoring.schema import GenerativeScoringReply, PairScoresReply, ScoreReply
from server.text.packed import unpacked
from tests.fake_values import VOCAB_SIZE, value_row
from tests.fakes import BOS, FakeEngine
from tests.server.conftest import MODEL, Site, error_of, eventually, in_process, on_a_port

PATHS = ("/generative_scoring", "/v1/score")
ASKED: dict[str, Any] = {"query": "abc", "items": ["de", "f"], "label_token_ids": [70, 71]}


async def post(site: Site, path: str, status: int = 200, **body: Any) -> Any:
    body = {"model": MODEL, **ASKED, **body}
    body = {key: value for key, value in body.items() if value != "leave out"}
    reply = await site.client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json() if status == 200 else error_of(reply)


def table(position: int) -> np.ndarray:
    row = value_row(position).astype(np.float64)
    made: np.ndarray = row - np.logaddexp.reduce(row)
    return made


class TestReplies:
    async def test_generative_scoring(self, site: Site) -> None:
        reply = await post(site, "/generative_scoring")
        assert reply["id"].startswith("generative-scoring-")
        assert (reply["object"], reply["model"]) == ("list", MODEL)
        for i, length in enumerate((5, 4)):
            scored = reply["data"][i]
            assert (scored["index"], scored["object"]) == (i, "score")
            p = np.exp(table(length))
            assert scored["score"] == pytest.approx(p[70] / (p[70] + p[71]), rel=1e-6)
            assert scored["label_logprobs"] == pytest.approx(table(length)[[70, 71]], abs=1e-6)
            assert np.exp(scored["other_logprob"]) == pytest.approx(1 - p[70] - p[71], rel=1e-6)

    async def test_score(self, site: Site) -> None:
        reply = await post(site, "/v1/score")
        assert reply["object"] == "scoring"
        for i, length in enumerate((5, 4)):
            p = np.exp(table(length))[[70, 71]]
            assert reply["scores"][i] == pytest.approx(p, rel=1e-6)
            assert reply["label_logprobs"][i] == pytest.approx(np.log(p), abs=1e-6)
            assert np.exp(reply["other_logprob"][i]) == pytest.approx(1 - p.sum(), rel=1e-6)

    @pytest.mark.parametrize("form", ["json", "packed"])
    async def test_replies_are_as_described(self, site: Site, form: str) -> None:
        whole = await post(site, "/generative_scoring", logprobs_format=form)
        GenerativeScoringReply.model_validate(whole)
        ScoreReply.model_validate(await post(site, "/v1/score", logprobs_format=form))

    async def test_softmax_as_asked(self, site: Site) -> None:
        p = np.exp(table(5))[[70, 71]]
        whole = await post(site, "/generative_scoring", apply_softmax=False)
        assert whole["data"][0]["score"] == pytest.approx(p[0], rel=1e-6)
        shared = await post(site, "/v1/score", apply_softmax=True)
        assert shared["scores"][0] == pytest.approx(p / p.sum(), rel=1e-6)

    async def test_usage_counts_the_query_once(self, site: Site) -> None:
        usage = (await post(site, "/v1/score"))["usage"]
        assert usage == {
            "prompt_tokens": 6,
            "completion_tokens": 0,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        usage = (await post(site, "/v1/score", item_first=True))["usage"]
        assert usage["prompt_tokens"] == 9

    @pytest.mark.parametrize("path", PATHS)
    async def test_packed(self, site: Site, path: str) -> None:
        plain, reply = await post(site, path), await post(site, path, logprobs_format="packed")

        if path == "/v1/score":
            want = {name: plain[name] for name in ("scores", "label_logprobs", "other_logprob")}
        else:
            names = {"score": "scores", "label_logprobs": "", "other_logprob": ""}
            want = {to or name: [d[name] for d in plain["data"]] for name, to in names.items()}
        for name, values in want.items():
            array = unpacked(reply[name])
            assert array.dtype == ("<f8" if name == "scores" else "<f4")
            assert (array == np.array(values, dtype=array.dtype)).all()
            assert array.shape == np.array(values).shape

    @pytest.mark.parametrize("path", PATHS)
    async def test_one_label_under_softmax_is_warned_of(self, site: Site, path: str) -> None:
        one: dict[str, Any] = {"label_token_ids": [70], "apply_softmax": True}
        (warning,) = (await post(site, path, **one))["warnings"]
        assert "apply_softmax" in warning
        assert (await post(site, path, **one, logprobs_format="packed"))["warnings"] == [warning]
        for body in ({**one, "apply_softmax": False}, {"apply_softmax": True}):
            assert "warnings" not in await post(site, path, **body)

    async def test_minus_infinity(self, site: Site) -> None:
        reply = await post(site, "/v1/score", label_token_ids=[263, 1])
        assert reply["label_logprobs"][0][0] == -9999.0
        assert reply["scores"][0][0] == 0.0


def branches_of(asked: ScoringRequest) -> list[bytes]:
    assert asked.branches is not None
    ends = np.cumsum(asked.branches.lens)[:-1]
    return [bytes(ids.tolist()) for ids in np.split(asked.branches.token_ids, ends)]


class TestWhatTheEngineGets:
    async def test_texts_are_tokenised_apart(self) -> None:
        async with in_process(with_bos=True) as site:
            await post(site, "/v1/score", labels=["yes", "n"], label_token_ids="leave out")
            asked = site.engine.scored[-1]
            assert asked.query_token_ids.tolist() == [BOS, *b"abc"]
            assert asked.item_token_ids.tolist() == list(b"def")
            assert asked.item_lens.tolist() == [2, 1]
            assert branches_of(asked) == [b"ye", b"ye"]
            assert asked.num_read.tolist() == [3, 3]
            assert asked.id_lists.tolist() == [[ord("y"), ord("n")], [ord("e"), -1], [ord("s"), -1]]
            await post(site, "/v1/score", add_special_tokens=False)
            assert site.engine.scored[-1].query_token_ids.tolist() == list(b"abc")

    async def test_ids(self, site: Site) -> None:
        body: dict[str, Any] = {
            "query": [1, 2],
            "items": [[3], [4, 5]],
            "label_token_ids": [[6, 7], 8, [6, 9]],
        }
        await post(site, "/generative_scoring", **body)
        asked = site.engine.scored[-1]
        assert asked.query_token_ids.tolist() == [1, 2]
        assert asked.item_token_ids.tolist() == [3, 4, 5]
        assert branches_of(asked) == [b"\6", b"\6"]
        assert asked.id_lists.tolist() == [[6, 8], [7, 9]]

    async def test_item_first(self, site: Site) -> None:
        await post(site, "/v1/score", item_first=True)
        asked = site.engine.scored[-1]
        assert len(asked.query_token_ids) == 0
        assert asked.item_token_ids.tolist() == list(b"deabcfabc")

    async def test_one_item_as_a_string(self, site: Site) -> None:
        reply = await post(site, "/v1/score", items="xyz")
        assert len(reply["scores"]) == 1

    @pytest.mark.parametrize("empty", ["", []])
    async def test_an_empty_item_is_the_query_alone(self, site: Site, empty: Any) -> None:
        """The engine reads positions of items: each begins with the query's last token then."""
        item = "de" if empty == "" else list(b"de")
        reply = await post(site, "/v1/score", items=[item, empty])
        asked = site.engine.scored[-1]
        assert asked.query_token_ids.tolist() == list(b"ab")
        assert asked.item_token_ids.tolist() == list(b"cdec")
        assert asked.item_lens.tolist() == [3, 1]
        for i, length in enumerate((5, 3)):
            want = table(length)[[70, 71]]
            assert reply["label_logprobs"][i] == pytest.approx(want, abs=1e-6)
        assert reply["usage"]["prompt_tokens"] == 5
        plain = await post(site, "/v1/score", items=[item])
        assert plain["scores"][0] == reply["scores"][0]

    async def test_empty_items_with_labels_of_several_tokens_and_before_the_query(
        self, site: Site
    ) -> None:
        await post(site, "/v1/score", items=[""], label_token_ids=[[6, 7], 8])
        asked = site.engine.scored[-1]
        assert asked.query_token_ids.tolist() == list(b"ab")
        assert asked.item_token_ids.tolist() == [ord("c")]
        assert branches_of(asked) == [b"\6"]
        await post(site, "/v1/score", items=["", "d"], item_first=True)
        asked = site.engine.scored[-1]
        assert len(asked.query_token_ids) == 0
        assert asked.item_token_ids.tolist() == list(b"abcdabc")
        assert asked.item_lens.tolist() == [3, 4]

    async def test_thousands_of_items_are_one_request(self, site: Site) -> None:
        reply = await post(site, "/generative_scoring", items=[[i % 200] for i in range(3000)])
        assert len(reply["data"]) == 3000
        assert len(site.engine.scored) == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"items": []}, "items"),
    ({"items": ["a", None]}, "items"),
    ({"items": [[1], "a"]}, "items"),
    ({"items": ["a", [1]]}, "items"),
    ({"items": [1, 2]}, "items"),
    ({"items": [[1], [-1]]}, "items"),
    ({"items": [[1], [VOCAB_SIZE]]}, "items"),
    ({"items": [[1], [True]]}, "items"),
    ({"items": [[1.5]]}, "items"),
    ({"items": ["x" * 300]}, "items"),
    ({"items": [[1] * 254]}, "items"),
    ({"items": 5}, "items"),
    ({"query": ""}, "query"),
    ({"query": []}, "query"),
    ({"query": [VOCAB_SIZE]}, "query"),
    ({"query": ["a"]}, "query"),
    ({"query": "x" * 300}, "query"),
    ({"label_token_ids": []}, "label_token_ids"),
    ({"label_token_ids": [-1]}, "label_token_ids"),
    ({"label_token_ids": [VOCAB_SIZE]}, "label_token_ids"),
    ({"label_token_ids": [[]]}, "label_token_ids"),
    ({"label_token_ids": ["a"]}, "label_token_ids"),
    ({"label_token_ids": list(range(129))}, "label_token_ids"),
    ({"label_token_ids": [[1] * 65]}, "label_token_ids"),
    ({"label_token_ids": [5, [5, 6]]}, "label_token_ids"),
    ({"label_token_ids": [5, 5]}, "label_token_ids"),
    ({"label_token_ids": "leave out"}, "labels, label_token_ids"),  # neither
    ({"labels": None, "label_token_ids": None}, "labels, label_token_ids"),
    ({"labels": ["a"]}, "labels, label_token_ids"),  # both
    ({"labels": [], "label_token_ids": "leave out"}, "labels"),
    ({"labels": [""], "label_token_ids": "leave out"}, "labels"),
    ({"labels": ["a", "ab"], "label_token_ids": "leave out"}, "labels"),
    ({"priority": 1}, "priority"),
    ({"temperature": 1}, "temperature"),
    ({"logprobs_format": "xml"}, "logprobs_format"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
async def test_refusals_name_the_field(site: Site, body: dict[str, Any], param: str) -> None:
    for path in PATHS:
        error = await post(site, path, 400, **body)
        assert error["param"].startswith(param), error
        assert all(name in error["message"] for name in param.split(", "))
    assert not site.engine.scored


async def test_a_label_of_no_tokens() -> None:
    class Mute(FakeEngine):
        pass

    async with in_process(Mute()) as site:
        tokenizer = site.context.tokenizer
        original = tokenizer.encode
        tokenizer.encode = lambda text, **kw: [] if text == "mute" else original(text, **kw)  # type: ignore[method-assign]
        body = {"labels": ["mute"], "label_token_ids": "leave out"}
        assert (await post(site, "/v1/score", 400, **body))["param"] == "labels"
        assert (await post(site, "/v1/score", 400, items=["mute"]))["param"] == "items"
        assert (await post(site, "/v1/score", 400, query="mute"))["param"] == "query"


async def test_the_context_is_never_exceeded_nor_cut() -> None:
    async with in_process(FakeEngine(max_model_len=16)) as site:
        await post(site, "/v1/score", query=[1] * 10, items=[[2] * 6])
        error = await post(site, "/v1/score", 400, query=[1] * 10, items=[[2], [2] * 7])
        assert (error["param"], error["code"]) == ("items", "context_length_exceeded")
        assert "items[1]" in error["message"]
        labels: dict[str, Any] = {"label_token_ids": [[1, 2], 3]}
        await post(site, "/v1/score", query=[1] * 10, items=[[2] * 5], **labels)
        await post(site, "/v1/score", 400, query=[1] * 10, items=[[2] * 6], **labels)
        await post(site, "/v1/score", query=[1] * 16, items=[[]])
        error = await post(site, "/v1/score", 400, query=[1] * 17, items=[[]])
        assert (error["param"], error["code"]) == ("query", "context_length_exceeded")


@pytest.mark.parametrize(
    ("finish", "code"), [(Finish.NAN, "nan_logits"), (Finish.ERROR, "engine_error")]
)
async def test_failures(site: Site, finish: Finish, code: str) -> None:
    site.engine.scoring_finish = finish
    assert (await post(site, "/v1/score", 500))["code"] == code


async def test_key_and_model() -> None:
    async with in_process(api_keys=("k",)) as site:
        for path in PATHS:
            assert (await site.client.post(path, json=ASKED)).status_code == 401
            headers = {"authorization": "Bearer k"}
            assert (await site.client.post(path, json=ASKED, headers=headers)).status_code == 200
            body = {**ASKED, "model": "nobody"}
            assert (await site.client.post(path, json=body, headers=headers)).status_code == 404


async def test_accounts(site: Site) -> None:
    await post(site, "/v1/score")
    await post(site, "/v1/score", 400, items=[])
    assert site.metric("tailrace_requests_received_total") == 2
    assert site.metric("tailrace_request_outcomes_total", outcome="success") == 1
    assert site.metric("tailrace_request_outcomes_total", outcome="client_error") == 1
    assert site.metric("tailrace_request_success_total", finished_reason="length") == 1
    assert site.metric("tailrace_prompt_tokens_total") == 6
    assert site.context.admission.num_in_flight == 0


async def test_a_client_that_leaves_ends_its_request() -> None:
    async with on_a_port() as site:
        site.engine.scoring_hangs = True
        async with httpx.AsyncClient(base_url=site.url) as client:
            asking = asyncio.create_task(client.post("/v1/score", json=ASKED))
            await eventually(lambda: bool(site.engine.scored))
            asking.cancel()
        await eventually(lambda: bool(site.engine.aborted))
        await eventually(lambda: site.context.admission.num_in_flight == 0)


async def test_a_dead_engine(site: Site) -> None:
    site.engine.scoring_hangs = True
    asking = asyncio.create_task(post(site, "/v1/score", 500))
    await eventually(lambda: bool(site.engine.scored))
    site.engine.die()
    assert (await asking)["code"] == "engine_dead"
    assert (await post(site, "/v1/score", 500))["code"] == "engine_dead"


PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))


class TestPairs:
    """vLLM's cross-encoder fields beside SGLang's, reported apart by their names."""

    async def ask(self, status: int = 200, **body: Any) -> Any:
        async with in_process(rerank_template="{{ query }} {{ document }}") as site:
            reply = await site.client.post("/v1/score", json={"model": MODEL, **body})
        assert reply.status_code == status, reply.text
        return reply.json() if status == 200 else error_of(reply)

    @pytest.mark.parametrize(("first", "second"), PAIRS)
    async def test_one_with_several(self, first: str, second: str) -> None:
        several: dict[str, Any] = {first: "where?", second: ["in Rome", "no"]}
        reply = await self.ask(**several)
        PairScoresReply.model_validate(reply)
        assert [each["index"] for each in reply["data"]] == [0, 1]
        both = []
        for text in ("in Rome", "no"):
            one: dict[str, Any] = {first: ["where?"], second: text}
            both.append((await self.ask(**one))["data"][0]["score"])
        assert [each["score"] for each in reply["data"]] == pytest.approx(both, abs=1e-6)
        assert all(0 < score < 1 for score in both)

    async def test_pair_by_pair_and_raw(self) -> None:
        asked: dict[str, Any] = {"text_1": ["a", "bb"], "text_2": ["cc", "d"]}
        scores = [each["score"] for each in (await self.ask(**asked))["data"]]
        raw = [each["score"] for each in (await self.ask(**asked, use_activation=False))["data"]]
        assert scores == pytest.approx([1 / (1 + np.exp(-value)) for value in raw])

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({}, "query is required"),
            ({"query": "a"}, "items is required"),
            ({"queries": "a"}, "got queries"),
            ({"text_1": "a", "documents": "b"}, "got documents, text_1"),
            ({"query": "a", "queries": "a", "documents": "b"}, "pairs are"),
            ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "as many as text_2, which are 3"),
            ({"text_1": "a", "text_2": "b", "labels": ["x"]}, "labels are not read of pairs"),
        ],
    )
    async def test_refused(self, body: dict[str, Any], words: str) -> None:
        assert words in (await self.ask(400, **body))["message"]
