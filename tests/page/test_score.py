"""The Score view: labels after items, and the surprise of texts."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import httpx

from tests.page.conftest import SLOW, OpenTab, Tab, expect, shown
from tests.serving.process import Server

pytestmark = SLOW

QUERY = "import os\n\ndef remove(path):\n    os."
ITEMS = ["un", "re", "path."]
LABELS = ["link", "move", "name"]


def asked(server: Server, **body: Any) -> dict[str, Any]:
    reply = httpx.post(f"{server.url}/v1/score", json=body, timeout=120)
    scores: dict[str, Any] = reply.raise_for_status().json()
    return scores


def enter(tab: Tab, items: str, labels: list[str]) -> None:
    tab.open("#/score")
    tab.page.fill(".query textarea", QUERY)
    tab.page.fill(".items textarea", items)
    tab.page.fill(".labels textarea", "\n".join(labels))
    tab.page.click(".inputs button.main")
    expect(tab.page.locator(".scores")).to_be_visible()


def test_the_table_shows_the_api_s_numbers(tab: Tab, server: Server) -> None:
    wanted = asked(server, query=QUERY, items=ITEMS, labels=LABELS)
    enter(tab, "\n".join(ITEMS), LABELS)
    rows = tab.page.locator(".scores tbody tr:not(.pad)")
    assert rows.count() == len(ITEMS)
    for i in range(len(ITEMS)):
        cells = rows.nth(i).locator("td")
        logprobs = [*wanted["label_logprobs"][i], wanted["other_logprob"][i]]
        assert cells.count() == len(logprobs)
        for k, logprob in enumerate(logprobs):
            title = cells.nth(k).get_attribute("title")
            # Items are packed into steps anew: sums in another order, so to float32's last digits.
            reported = float(title.split("logprob ")[1])
            assert math.isclose(reported, logprob, rel_tol=1e-4), title
            assert shown(reported) in title


def test_rows_are_sorted_and_taken_away(tab: Tab) -> None:
    enter(tab, "\n".join(ITEMS), LABELS)
    tab.page.click(".scores thead >> text=name")
    values = tab.page.locator(".scores tbody td:nth-of-type(3)")
    found = [float(v) for v in values.evaluate_all("all => all.map((e) => e.dataset.logprob)")]
    assert found == sorted(found, reverse=True)
    with tab.page.expect_download() as downloading:
        tab.page.click(".results >> text=CSV")
    text = downloading.value.path().read_text()
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert header == ["item", *LABELS, *(f"log {name}" for name in LABELS), "log others"]
    assert [row[0] for row in rows] == ITEMS
    with tab.page.expect_download() as downloading:
        tab.page.click(".results >> text=JSON")
    objects = json.loads(downloading.value.path().read_text())
    assert [each["item"] for each in objects] == ITEMS
    assert float(rows[0][1]) == objects[0]["scores"]["link"]


def test_thousands_of_items_make_few_rows(tab: Tab) -> None:
    items = "\n".join(json.dumps({"item": f"item {i}"}) for i in range(3000))
    enter(tab, items, ["a", "b"])
    expect(tab.page.locator(".results .stats b").first).to_have_text("3\N{THIN SPACE}000")
    assert tab.page.locator(".scores tbody tr").count() < 120
    tab.page.locator(".scroll").evaluate("(e) => (e.scrollTop = e.scrollHeight)")
    expect(tab.page.locator(".scores tbody th >> text=item·2999")).to_be_visible()


def test_an_address_brings_the_scores_back(open_tab: OpenTab) -> None:
    tab = open_tab()
    enter(tab, "\n".join(ITEMS), LABELS)
    tab.page.click(".scores thead >> text=move")
    tab.page.wait_for_url(lambda url: "#/score/" in url)
    tab.page.wait_for_timeout(1000)  # the address is written a moment after the last change
    other = open_tab()
    other.open(tab.page.url.removeprefix(f"{tab.url}/"))
    expect(other.page.locator(".scores [aria-sort=descending]")).to_contain_text("move")


def test_bits_per_byte_of_texts(tab: Tab, server: Server) -> None:
    texts = ["for i in range(10):\n    print(i)\n", "for i in rainge(10):\n    print(é)\n"]
    tab.open("#/score")
    tab.page.click("text=Surprise of texts")
    for name, text in zip("AB", texts, strict=True):
        tab.page.fill(f"#text-{name}", text)
    tab.page.click("text=Measure")
    shown_bits = tab.page.locator(".bits-per-byte")
    expect(shown_bits).to_have_count(2)
    for i, text in enumerate(texts):
        body = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 1}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
        logprobs = reply["choices"][0]["logprobs"]
        bits = -sum(logprobs["token_logprobs"][1:]) / math.log(2)
        size = sum(len(each) for each in logprobs["bytes"][1:])
        # Logprobs are float32 of one computation or another; four digits are shown.
        assert abs(float(shown_bits.nth(i).text_content()) - bits / size) < 2e-4
    expect(tab.page.locator(".verdict")).to_contain_text("A is less surprising")
    tab.page.locator(".tokens").first.focus()
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowRight")
    expect(tab.page.locator(".readout").first).to_contain_text("rank")
