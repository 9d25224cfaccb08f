"""A right server passes every check; each fault fails the check that is there for it.

The pretended server's draws have a fixed seed, so that outcomes are fixed; each statistical check
had odds of 1e-6 of failing by chance.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from server.conformance.report import document, header, line, page, summary
from server.conformance.run import GROUPS, meaning, run_check, run_checks
from server.conformance.subject import Subject
from server.remote import Remote, RemoteReply
from tests.server.conformance.pretend import PretendServer, json_reply


def subject(fault: str | None = None) -> Subject:
    return Subject(cast(Remote, PretendServer(fault)), "toy")


def test_a_right_server_passes_every_check() -> None:
    results = list(run_checks(subject()))
    assert [result for result in results if result.status != "pass"] == []
    assert len(results) == sum(map(len, GROUPS.values()))


FAULTS = {
    "models": ("replies", "models"),
    "object": ("replies", "completion"),
    "usage's sum": ("replies", "completion"),
    "chat's object": ("replies", "chat"),
    "max_tokens": ("replies", "max tokens"),
    "prompts times n": ("replies", "prompts times n"),
    "stop": ("replies", "stop string"),
    "done": ("streams", "ends with done"),
    "type": ("streams", "completion"),
    "stream": ("streams", "completion"),
    "chat's stream": ("streams", "chat"),
    "usage's chunk": ("streams", "usage"),
    "no logprobs": ("logprobs", "are given"),
    "mass": ("logprobs", "are a distribution"),
    "positive": ("logprobs", "are a distribution"),
    "chosen": ("logprobs", "chosen equals its entry"),
    "greedy": ("logprobs", "greedy is the best"),
    "number of tops": ("logprobs", "number of tops changes nothing"),
    "echo": ("logprobs", "echo equals generation"),
    "echo's values": ("logprobs", "echo equals generation"),
    "offsets": ("logprobs", "offsets point into the text"),
    "chat's logprobs": ("logprobs", "of a chat join to its content"),
    "chat's bytes": ("logprobs", "of a chat join to its content"),
    "distribution": ("draws", "follow the distribution"),
    "speculation": ("draws", "later tokens follow it"),
    "temperature": ("draws", "temperature sharpens"),
    "defaults": ("draws", "defaults are neutral"),
    "seed": ("draws", "seeds repeat"),
    "one seed": ("draws", "other seeds differ"),
    "one race for n": ("draws", "choices of one seed differ"),
    "top_k": ("parameters", "top k"),
    "top_k + 1": ("parameters", "top k"),
    "flat": ("parameters", "top k"),
    "top_p": ("parameters", "top p"),
    "top_p + 1": ("parameters", "top p"),
    "min_p": ("parameters", "min p"),
    "bias": ("parameters", "bias"),
    "penalty": ("parameters", "penalties"),
    "object's end": ("grammars", "json object"),
    "schema": ("grammars", "json schema"),
    "regex": ("grammars", "regex"),
    "bad fields": ("errors", "bad fields"),
    "error object": ("errors", "error object"),
    "bodies": ("errors", "bodies"),
    "unknown model": ("errors", "unknown model"),
    "context length": ("errors", "context length"),
}
"""Each fault with the group and the name of the check that is there for it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_check(fault: str) -> None:
    group, name = FAULTS[fault]
    (check,) = [each for each in GROUPS[group] if each.__name__.replace("_", " ") == name]
    result = run_check(group, check, subject(fault))
    assert result.status == "fail", result
    assert "of another form" not in result.measured


def test_every_check_but_two_has_a_fault() -> None:
    names = {
        (group, each.__name__.replace("_", " "))
        for group, checks in GROUPS.items()
        for each in checks
    }
    assert names - set(FAULTS.values()) == {
        ("replies", "token ids"),
        ("parameters", "temperature zero"),
    }


class Refusing(PretendServer):
    """It has no chats and no logprobs, and says so."""

    def post(self, path: str, body: Any) -> RemoteReply:
        if "chat" in path or (isinstance(body, dict) and "logprobs" in body):
            return json_reply(400, {"error": {"message": "not served here"}})
        return super().post(path, body)


def test_what_a_server_says_that_it_does_not_do_is_no_failure() -> None:
    server = Subject(cast(Remote, Refusing()), "toy")
    status = {result.check: result.status for result in run_checks(server)}
    assert status["chat"] == status["json schema"] == status["are given"] == "refused"
    assert status["follow the distribution"] == "not judged"
    assert status["completion"] == "pass"


def test_the_reports_say_the_same() -> None:
    results = list(run_checks(subject("top_k")))
    reported = {"url": "http://pretend", "model": "<toy>", "made": "now"}
    table = [line(result) for result in results]
    assert sum(" FAIL " in row for row in table) == 1
    assert header().split()[:3] == ["group", "check", "result"]
    written = document(results, reported)
    assert [check["status"] for check in written["checks"]].count("fail") == 1
    assert all(check["should_be"].endswith(".") for check in written["checks"])
    assert "40 checks: 39 pass, 1 fail" in summary(results)
    html = page(results, reported)
    assert "&lt;toy&gt; at http://pretend" in html
    assert html.count('class="fail"') == 1
    assert meaning("parameters", "top k") in html
