"""The Decide view: questions of three kinds, and what the API says of them as bars."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from tests.page.conftest import SLOW, OpenTab, Tab, expect
from tests.serving.process import Server

pytestmark = SLOW

TEXT = "The parcel with my lamp is lost. Please answer today."
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "The mail is about a delivery."},
    {
        "type": "choice",
        "instructions": "Who should answer?",
        "choices": [
            {"value": "billing", "description": "money - and refunds"},
            {"value": "shipping"},
        ],
    },
    {
        "type": "score",
        "instructions": "How urgent is it?",
        "levels": [{"label": "can wait"}, {"label": "this week"}, {"label": "today"}],
    },
]
LINES = ["", "billing - money - and refunds\nshipping", "can wait\nthis week\ntoday"]


def enter(tab: Tab) -> None:
    """Replace what the view shows by the questions above."""
    tab.open("#/decide")
    tab.page.fill(".asked .state", TEXT)
    while tab.page.locator(".question").count():
        tab.page.locator(".question .remove").first.click()
    for i, (question, lines) in enumerate(zip(QUESTIONS, LINES, strict=True)):
        tab.page.click(f".asked .add >> text={question['type']}")
        own = tab.page.locator(".question").nth(i)
        own.locator(".text").fill(question["instructions"])
        if lines:
            own.locator("textarea").fill(lines)


def decide(tab: Tab) -> dict[str, Any]:
    """Ask, and give back the body that the page has sent."""
    with tab.page.expect_request("**/v1/decisions") as sent:
        tab.page.click(".asked button.main")
    body: dict[str, Any] = json.loads(sent.value.post_data)
    expect(tab.page.locator(".answer")).to_have_count(len(body["questions"]))
    return body


def shares_of(answer: dict[str, Any]) -> list[float]:
    if answer["type"] == "predicate":
        return [answer["probability"], 1 - answer["probability"]]
    return [each["probability"] for each in answer["probabilities"]]


def test_bars_show_the_api_s_numbers(tab: Tab, server: Server) -> None:
    enter(tab)
    body = decide(tab)
    assert (body["input"], body["questions"], body["permute"]) == (TEXT, QUESTIONS, 4)
    reply = httpx.post(f"{server.url}/v1/decisions", json=body, timeout=120).json()
    for i, answer in enumerate(reply["answers"]):
        shown = tab.page.locator(".answer").nth(i)
        wanted = shares_of(answer)
        cells = shown.locator(".chance").evaluate_all("all => all.map((e) => Number(e.title))")
        bars = shown.locator(".track").evaluate_all(
            "all => all.map((e) => e.firstChild.offsetWidth / e.offsetWidth)"
        )
        for cell, bar, share in zip(cells, bars, wanted, strict=True):
            assert abs(cell - share) < 1e-5, "the sums of one step or another"
            assert abs(bar - share) < 0.01, "a pixel"
        trust = shown.locator(".trust").text_content()
        mass = re.search(r"label mass ([\d.e-]+)%", trust)
        assert mass is not None
        assert abs(float(mass[1]) / 100 - answer["diagnostics"]["label_mass"]) < 1e-4
        orders = len(answer["diagnostics"]["orders"])
        assert f"spread over {orders} orders" in trust
    for label, words in (("curl", "curl http"), ("Python", "urlopen")):
        tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab.page.click(f".asked .copy >> text={label}")
        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert words in copied
        assert "can wait" in copied


def test_settings_go_with_the_request(tab: Tab) -> None:
    enter(tab)
    tab.page.get_by_label("orders", exact=True).fill("1")
    tab.page.get_by_label("without the prior").check()
    tab.page.click(".asked .choice button >> text=options")
    body = decide(tab)
    assert "permute" not in body
    assert (body["prior"], body["labels"]) == ("content_free", "options")


def test_a_refusal_is_shown_in_the_server_s_words(tab: Tab) -> None:
    enter(tab)
    tab.page.locator(".question").nth(1).locator("textarea").fill("one")
    tab.page.click(".asked button.main")
    expect(tab.page.locator(".asked .failure")).to_contain_text("choices")


def test_an_address_brings_the_answers_back(open_tab: OpenTab) -> None:
    tab = open_tab()
    enter(tab)
    decide(tab)
    tab.page.wait_for_url(lambda url: "#/decide/" in url)
    tab.page.wait_for_timeout(1000)  # the address is written a moment after the last change
    other = open_tab()
    other.open(tab.page.url.removeprefix(f"{tab.url}/"))
    expect(other.page.locator(".answer")).to_have_count(3)
    expect(other.page.locator(".answer h3").nth(1)).to_contain_text("Who should answer?")
