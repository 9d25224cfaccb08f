"""The Write view: replies, tokens looked into, branches, comparison, addresses."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from tests.page.conftest import SLOW, WAIT_MS, OpenTab, Tab, chunks_of, expect, shown

pytestmark = SLOW

PROMPT = "def fibonacci(n):\n"
SCRIPT = '<script>document.title="taken"</script><img src=x onerror="document.title=1">'


def keep_streams(tab: Tab) -> list[str]:
    """Streams as they come: the page gets each in one piece."""
    found: list[str] = []

    def keep(route: Any) -> None:
        reply = route.fetch()
        found.append(reply.text())
        route.fulfill(response=reply, body=found[-1])

    tab.page.route("**/v1/completions", keep)
    return found


def chosen_in(tab: Tab) -> str:
    return tab.text(".inspector .exact")


def percent_of(text: str) -> float:
    return float(text.strip().removesuffix("%")) / 100


def test_numbers_are_the_api_s(tab: Tab) -> None:
    """To the last digit: of the token, of its alternatives, and of those after settings."""
    tab.open()
    found = keep_streams(tab)
    tab.run(PROMPT, tokens="24", seed="11")
    tab.page.unroute("**/v1/completions")
    chunks = [chunk for text in found for chunk in chunks_of(text)]
    pieces = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    values = [v for piece in pieces for v in piece["logprobs"]["token_logprobs"]]
    tops = [top for piece in pieces for top in piece["logprobs"]["top_logprobs"]]
    kept = [v for piece in pieces for v in piece["kept_logprobs"]]
    assert len(values) == 24
    for i in (0, 7, 23):
        with tab.page.expect_response(
            lambda r: '"max_tokens":0' in (r.request.post_data or "")
        ) as asked:
            tab.page.click(f".tok[data-i='{i}']")
        assert chosen_in(tab) == shown(values[i])
        assert tab.text(".readout .logprob") == shown(values[i])
        assert shown(kept[i]) in tab.page.locator(".facts [title^=log]").last.get_attribute("title")
        body, answer = json.loads(asked.value.request.post_data), asked.value.json()
        reported = answer["choices"][0]["logprob_token_ids"]["logprobs"][0]
        rows = tab.page.locator(".alternatives tbody tr:not(.rest)")
        expect(tab.page.locator(".alternatives .bounds")).to_have_count(0)
        assert rows.count() == len(tops[i])
        raw = sorted(tops[i].values(), reverse=True)
        after = dict(zip(body["logprob_token_ids"], reported, strict=True))
        for k in range(rows.count()):
            cells = rows.nth(k).locator("td")
            assert cells.nth(0).get_attribute("title") == f"logprob {shown(raw[k])}"
            own = int(rows.nth(k).locator("button").get_attribute("title").split()[1].strip(";"))
            assert cells.nth(1).get_attribute("title") == f"logprob {shown(after[own])}"
            assert math.isclose(
                percent_of(cells.nth(0).text_content()), math.exp(raw[k]), rel_tol=5e-2
            )
        kept_now = answer["choices"][0]["kept_logprobs"][0]
        assert tab.page.locator(".kept").get_attribute("title") == f"log {shown(kept_now)}"


def test_sliders_ask_for_exact_values_and_show_bounds_meanwhile(tab: Tab) -> None:
    tab.open()
    tab.run(PROMPT, tokens="8", seed="3")
    tab.page.click(".tok[data-i='4']")
    expect(tab.page.locator(".alternatives .bounds")).to_have_count(0)
    held: list[Any] = []
    holding = True

    def hold(route: Any) -> None:
        if holding:
            held.append(route)
        else:
            route.continue_()

    tab.page.route("**/v1/completions", hold)
    field = tab.page.locator(".trial").get_by_label("temperature", exact=True)
    field.fill("1.7")
    field.press("Tab")
    bounds = tab.page.locator(".alternatives .bounds")
    expect(bounds.first).to_be_visible()
    assert "%" in bounds.first.text_content()
    high = percent_of(bounds.first.text_content().strip("≈≤ "))
    for _ in range(100):
        if held:
            break
        tab.page.wait_for_timeout(50)
    assert json.loads(held[-1].request.post_data)["temperature"] == 1.7
    holding = False
    held[-1].continue_()
    expect(bounds).to_have_count(0)
    exact = percent_of(tab.page.locator(".alternatives tbody td").nth(1).text_content())
    assert exact <= high * 1.001
    tab.page.click(".trial >> text=use in settings")
    value = tab.page.locator(".settings").get_by_label("temperature", exact=True)
    expect(value).to_have_value("1.7")


def test_drafted_tokens_are_marked(tab: Tab) -> None:
    tab.open()
    found = keep_streams(tab)
    tab.run(PROMPT, tokens="40", seed="2")
    choices = [choice for text in found for chunk in chunks_of(text) for choice in chunk["choices"]]
    origins = [origin for choice in choices for origin in choice["token_origins"]]
    assert "accepted" in origins
    for origin in ("accepted", "recovered", "bonus"):
        expect(tab.page.locator(f".tok.o-{origin}")).to_have_count(origins.count(origin))
    tab.page.click(f".tok[data-i='{origins.index('accepted')}']")
    expect(tab.page.locator(".facts")).to_contain_text("accepted")


def test_a_reply_branches_and_branches_are_compared(tab: Tab) -> None:
    tab.open()
    tab.run(PROMPT, tokens="20", seed="5")
    first = tab.text(".tokens")
    tab.page.click(".tok[data-i='6']")
    picks = tab.page.locator(".alternatives tr:not(.chosen) .pick")
    name = picks.nth(0).text_content()
    picks.nth(0).click()
    tab.ended(2)
    picked = tab.page.locator(".tok.picked")
    expect(picked).to_have_count(1)
    assert picked.get_attribute("data-i") == "6"
    assert picked.text_content().replace(" ", "·").replace("↵\n", "↵") == name
    second = tab.text(".tokens")
    assert second != first
    tab.page.keyboard.press("[")
    expect(tab.page.locator(".tokens")).to_have_text(first)
    tab.page.keyboard.press("]")
    expect(tab.page.locator(".tokens")).to_have_text(second)
    tab.page.click(".settings >> text=Compare")
    tab.page.click("[aria-label='Show branch 1 in A']")
    tab.page.click("[aria-label='Show branch 2 in B']")
    expect(tab.page.locator(".comparison")).to_contain_text("6 tokens shared")
    expect(tab.page.locator(".tok.parts")).to_have_count(2)


def test_two_settings_side_by_side(tab: Tab) -> None:
    tab.open()
    tab.page.click(".settings >> text=Compare")
    tab.run(PROMPT, tokens="12", temperature="0")
    panes = tab.page.locator(".pane .tokens")
    expect(panes).to_have_count(2)
    bodies = tab.page.locator(".tree li .at").all_text_contents()
    assert bodies == ["T 0.8 p 0.95", "T 0 p 0.95"]


def test_an_address_brings_everything_back(open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.open()
    tab.run('print("héllo 🙂")\n', tokens="16", seed="9")
    tab.page.click(".tok[data-i='3']")
    tab.page.locator(".alternatives tr:not(.chosen) .pick").nth(1).click()
    tab.ended(2)
    tab.page.click("text=entropy")
    tab.page.wait_for_url(lambda url: "#/write/" in url)
    tab.page.wait_for_timeout(1000)  # the address is written a moment after the last change
    other = open_tab()
    other.open(tab.page.url.removeprefix(f"{tab.url}/"))
    expect(other.page.locator(".tree li")).to_have_count(2)
    for selector in (".tokens", ".inspector h2", ".inspector .exact"):
        expect(other.page.locator(selector)).to_have_text(tab.text(selector))
    assert other.page.input_value(".prompt textarea") == 'print("héllo 🙂")\n'
    expect(other.page.locator("text=entropy").first).to_have_attribute("aria-pressed", "true")


def test_what_a_model_writes_is_text(tab: Tab) -> None:
    tab.open()
    tab.page.locator(".settings summary").click()
    tab.page.select_option(".settings select", "choice")
    tab.page.fill("[aria-label='The grammar']", SCRIPT)
    tab.run(PROMPT, tokens="80")
    assert SCRIPT in tab.text(".tokens").replace(" ■", "")
    tab.page.click(".tok[data-i='0']")
    expect(tab.page.locator(".kept")).to_contain_text("grammar and filters kept")
    tab.page.goto(f"{tab.url}/#/score")
    tab.page.click("text=Surprise of texts")
    tab.page.fill("#text-A", SCRIPT)
    tab.page.fill("#text-B", "")
    tab.page.click("text=Measure")
    expect(tab.page.locator(".tokens")).to_have_text(SCRIPT)
    assert tab.page.locator("main script, main img, .tokens *:not(span)").count() == 0
    assert tab.page.title().startswith("tailrace")


def test_a_grammar_shows_what_it_cut(tab: Tab) -> None:
    tab.open()
    tab.page.locator(".settings summary").click()
    tab.page.select_option(".settings select", "regex")
    tab.page.fill("[aria-label='The grammar']", "[0-9]{3}")
    tab.run("x = ", tokens="8")
    tab.page.click(".tok[data-i='0']")
    rows = tab.page.locator(".alternatives tbody tr:not(.rest)")
    expect(rows.nth(20)).to_be_visible()
    assert "grammar or filter" in " ".join(rows.all_text_contents())
    tab.page.click("text=kept mass")
    expect(tab.page.locator(".tok[data-i='0']")).to_have_class("tok t9 selected")


def test_chats_are_rendered_by_the_template(tab: Tab) -> None:
    tab.open()
    tab.page.click("text=Chat")
    tab.page.fill("[aria-label='Message 1']", "Sort a list.")
    tab.run(tokens="10")
    assert int(tab.page.locator(".stats b").first.text_content()) > 5
    tab.page.click("text=+ reply")
    expect(tab.page.locator(".message")).to_have_count(3)


def test_everything_is_reached_by_keys(tab: Tab) -> None:
    tab.open()
    tab.page.focus(".prompt textarea")
    tab.page.keyboard.press("Control+Enter")
    expect(tab.page.locator(".tok").first).to_be_visible()
    tab.ended(1)
    tab.page.focus(".tokens")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowRight")
    expect(tab.page.locator(".inspector h2")).to_contain_text("Token 2")
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("ArrowDown")
    assert tab.page.evaluate("document.activeElement.className") == "pick"
    tab.page.keyboard.press("Enter")
    tab.ended(2)
    tab.page.focus(".tokens")
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator(".inspector.none")).to_be_visible()


def test_a_refusal_is_told(open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.open()
    tab.run(PROMPT, tokens="9999")
    expect(tab.page.locator(".stats .failure")).to_contain_text("2048")


def test_requests_are_copied(open_tab: OpenTab) -> None:
    tab = open_tab(permissions=["clipboard-read", "clipboard-write"])
    tab.open()
    tab.run("x = 'it'\n", tokens="6", seed="4")
    tab.page.click(".copies >> text=curl")
    expect(tab.page.locator(".copies .mark").nth(1)).to_have_text("✓")
    command = tab.page.evaluate("navigator.clipboard.readText()")
    tab.page.click(".copies >> text=Python")
    expect(tab.page.locator(".copies .mark").nth(2)).to_have_text("✓", timeout=WAIT_MS)
    program = tab.page.evaluate("navigator.clipboard.readText()")
    text = tab.text(".tokens").replace("↵\n", "\n")
    assert texts_of(command, program) == [text, text]


def texts_of(command: str, program: str) -> list[str]:
    """What the copied command and the copied program print."""
    outputs = [
        subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120).stdout,
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        ).stdout,
    ]
    return [json.loads(output)["choices"][0]["text"] for output in outputs]


def test_a_conversation_is_read_as_text(tab: Tab, open_tab: OpenTab) -> None:
    """Thoughts are folded, and the end token has its name in both kinds of reading; an address
    has all of it."""
    tab.open()
    tab.page.get_by_text("Chat", exact=True).click()
    tab.run(tokens="60", temperature="0")
    expect(tab.page.locator(".tokens")).to_contain_text("■ <|im_end|>")
    tab.page.get_by_role("group", name="Show replies as").get_by_text("text").click()
    turns = tab.page.locator(".reading .turn")
    expect(turns.nth(0)).to_contain_text("What is the capital of France?")
    expect(turns.nth(1).locator(".markdown").last).to_have_text("The capital of France is Paris.")
    thoughts = turns.nth(1).locator(".thoughts .markdown")
    expect(thoughts).not_to_be_visible()
    turns.nth(1).get_by_text("Thoughts").click()
    expect(thoughts).to_have_text("I know France.")
    expect(tab.page.locator(".reading .end")).to_have_text("ended by <|im_end|>")
    other = open_tab()
    tab.page.wait_for_timeout(1000)  # the address is written a moment after the last change
    other.open(tab.page.url.removeprefix(f"{tab.url}/"))
    expect(other.page.locator(".reading .turn")).to_have_count(2)
    expect(other.page.locator(".reading")).to_have_text(tab.text(".reading"))
    tab.page.click("text=+ reply")
    assert tab.page.input_value(".message textarea >> nth=1") == "The capital of France is Paris."


MARKDOWN = """# Title
A *word*, **bold `x`**, snake_case_name, 2 * 3 * 4, `a * b`.

- one
  1. inner
  2. second
- two
> quoted
---
```py
# no title <b>
```
[here](https://example.org/a) [no](javascript:alert(1)) <img src=x onerror=alert(1)>"""


def test_markdown_becomes_elements_and_html_does_not(tab: Tab) -> None:
    tab.open()
    script = """async (text) => {
        const { h, render } = await import('/page/lib/html.js');
        const { Markdown } = await import('/page/parts/markdown.js');
        const box = document.createElement('div');
        render(h(Markdown, { text }), box);
        return box.innerHTML;
    }"""
    assert tab.page.evaluate(script, MARKDOWN) == (
        '<div class="markdown"><h3>Title</h3>'
        "<p>A <em>word</em>, <strong>bold <code>x</code></strong>, snake_case_name, 2 * 3 * 4, "
        "<code>a * b</code>.</p>"
        '<ul><li><p>one</p><ol start="1"><li><p>inner</p></li><li><p>second</p></li></ol></li>'
        "<li><p>two</p></li></ul><blockquote><p>quoted</p></blockquote><hr>"
        "<pre><code># no title &lt;b&gt;</code></pre>"
        '<p><a href="https://example.org/a" rel="noreferrer" target="_blank">here</a> '
        "[no](javascript:alert(1)) &lt;img src=x onerror=alert(1)&gt;</p></div>"
    )
    for hostile in ("> " * 20_000, "*" * 20_000, "[" * 20_000, "` `` " * 5_000, "- " * 20_000):
        took = tab.page.evaluate(
            f"async (text) => {{ const from = performance.now(); await ({script})(text);"
            " return performance.now() - from; }",
            hostile,
        )
        assert took < 1000, f"{hostile[:4]!r} takes {took} ms"


@pytest.mark.parametrize(
    ("text", "thoughts", "answer"),
    [
        ("plain", "", "plain"),
        ("<think>\na\n</think>\n\nb", "a", "b"),
        ("a\n</think>\nb", "a", "b"),
        ("<think>a", "a", ""),
        ("b <think>a</think> c", "a", "b  c"),
        ("<think></think>b", "", "b"),
    ],
)
def test_thoughts_are_split_from_the_answer(
    tab: Tab, text: str, thoughts: str, answer: str
) -> None:
    tab.open()
    script = "async (text) => (await import('/page/lib/thoughts.js')).splitThoughts(text)"
    assert tab.page.evaluate(script, text) == {"thoughts": thoughts, "answer": answer}
