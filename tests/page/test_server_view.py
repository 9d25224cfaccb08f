"""The Server view: live numbers, facts, the self-test beside traffic."""

from __future__ import annotations

import re

import httpx

from tests.page.conftest import SLOW, OpenTab, Tab, expect, shown
from tests.serving.process import Server, serve

pytestmark = SLOW


def test_numbers_follow_the_metrics(tab: Tab, server: Server) -> None:
    body = {"prompt": "def ", "max_tokens": 32, "n": 4}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).raise_for_status()
    tab.open("#/server")
    panel = tab.page.locator("[aria-label='Rows by sampling path']")
    expect(panel.locator("tr").first).to_contain_text("native")
    before = total(panel.locator("h2 .muted").text_content())
    assert before > 0
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).raise_for_status()
    expect(panel.locator("h2 .muted")).not_to_have_text(str(before))
    chart = tab.page.locator(".chart [role=img]").first
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart).to_have_attribute("aria-label", re.compile(r"generated [\d.]+, prompt"))
    expect(tab.page.locator("[aria-label='Time to first token'] dd").first).to_contain_text("s")
    expect(tab.page.locator("[aria-label=Speculation] dt")).to_have_text(["1", "2", "3", "a step"])


def total(text: str) -> int:
    return int(text.replace("\N{THIN SPACE}", ""))


def test_facts_are_the_server_s(tab: Tab, server: Server) -> None:
    about = server.get("/server_info").json()
    tab.open("#/server")
    facts = tab.page.locator(".about")
    for name in ("model", "version", "device", "dtype", "sampler"):
        expect(facts).to_contain_text(str(about[name]))
    for flag in about["flags"]:
        expect(facts).to_contain_text(flag)


def test_a_quantized_server_states_its_error(open_tab: OpenTab) -> None:
    """The figures are the API's, to the digits shown."""
    with serve("--quantization", "fp8") as server:
        (card,) = server.get("/v1/models").json()["data"]
        error = card["quantization"]
        tab = open_tab(server.url)
        tab.open("#/server")
        facts = tab.page.get_by_label("Error of quantization")
        for name in ("scheme", "reference", "text"):
            expect(facts).to_contain_text(error[name])
        for label, name in (("mean KL", "mean_kl"), ("largest gap", "max_logprob_gap")):
            reported = facts.locator(".fact", has_text=label).locator("dd")
            expect(reported).to_have_text(f"{shown(float(f'{error[name]:.3g}'))} nats")


def test_what_is_not_quantized_states_no_error(tab: Tab) -> None:
    tab.open("#/server")
    expect(tab.page.locator(".about")).to_contain_text("Flags")
    expect(tab.page.locator(".about")).not_to_contain_text("quantization")


def test_the_self_test_runs_beside_traffic(tab: Tab, server: Server) -> None:
    tab.open("#/server")
    tab.page.click(".verify button")
    expect(tab.page.locator(".verify tbody tr").nth(2)).to_be_visible(timeout=240_000)
    assert tab.page.locator(".verify .fail").count() == 0
    expect(tab.page.locator(".verify svg circle.won").first).to_be_visible()
    body = {"prompt": "def ", "max_tokens": 4}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).raise_for_status()
    tab.page.click(".verify button")
    expect(tab.page.locator(".verify h2")).to_contain_text("stopped")


def test_checks_are_drawn(tab: Tab) -> None:
    """Words of a check become the numbers that its picture is made of."""
    tab.open("#/server")
    script = """async (check) => {
        const { read } = await import('/page/views/server/verify_drawing.js'); return read(check);
    }"""
    reported = tab.page.evaluate(script, {"statistic": "chi2(110) = 99.1", "threshold": "214.5"})
    assert reported == {"kind": "chi2", "freedom": 110, "value": 99.1, "limit": 214.5}
    reported = tab.page.evaluate(script, {"statistic": "37 of 32.8", "threshold": "6 to 70"})
    assert reported == {"kind": "count", "value": 37, "mean": 32.8, "low": 6, "high": 70}
    reported = tab.page.evaluate(script, {"statistic": "24 of 24 rare tokens", "threshold": "all"})
    assert reported == {"kind": "replay", "value": 24, "of": 24}
    reported = tab.page.evaluate(script, {"statistic": "2.2e-07", "threshold": "1e-04"})
    assert reported is None
