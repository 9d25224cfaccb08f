"""A headless Chromium and a real server on the demo model, which the tests of the page share.

The browser is the distribution's (`chromium`), driven by the package `playwright`; where either is
missing the tests are skipped.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from tests.serving.process import Server, serve

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
WAIT_MS = 90_000
"""Machines are shared: what takes a second may take a minute."""
SPECULATION = json.dumps(
    {"method": "eagle", "num_speculative_tokens": 3, "draft_sample_method": "gumbel"}
)

SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]


def expect(shown: Any) -> Any:
    """Playwright's assertions, which wait until they hold."""
    return importlib.import_module("playwright.sync_api").expect(shown)


@dataclass
class Tab:
    """A tab of the browser, and what it did."""

    page: Any
    url: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, fragment: str = "") -> None:
        self.page.goto(f"{self.url}/{fragment}")
        self.page.wait_for_selector("main > *")

    def run(self, prompt: str | None = None, **settings: str) -> None:
        """Ask for a reply, and wait for its end."""
        if prompt is not None:
            self.page.fill(".prompt textarea", prompt)
        for label, value in settings.items():
            name = label.replace("_", "-")
            self.page.locator(".settings").get_by_label(name, exact=True).fill(value)
            self.page.keyboard.press("Tab")
        branches = self.page.locator(".tree li").count() + self.page.locator(".pane").count()
        self.page.click(".prompt button.main")
        self.ended(branches)

    def ended(self, branches: int) -> None:
        """Wait until there are so many branches, and none is being read."""
        expect(self.page.locator(".tree li")).to_have_count(branches)
        expect(self.page.locator(".prompt button.main")).to_have_text("Run")
        states = self.page.locator(".stats .state")
        for i in range(states.count()):
            expect(states.nth(i)).not_to_have_text("…")

    def text(self, selector: str) -> str:
        words: str = self.page.locator(selector).first.text_content()
        return words


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serve("--speculative-config", SPECULATION, "--page-verify") as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=WAIT_MS)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


OpenTab = Callable[..., Tab]


@pytest.fixture
def open_tab(browser: Any, server: Server) -> Iterator[OpenTab]:
    """Opens tabs, each in a context of its own; at the end each must have kept to the rules."""
    opened: list[tuple[Any, Tab]] = []

    def make(
        url: str = server.url,
        *,
        width: int = 1440,
        height: int = 900,
        **options: Any,
    ) -> Tab:
        """A tab; the options are those of Playwright's contexts."""
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(WAIT_MS)
        tab = Tab(context.new_page(), url)

        def complain(words: str) -> None:
            if not words.startswith("Failed to load resource"):  # a status, such as a 400
                tab.complaints.append(words)

        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.on("pageerror", lambda error: complain(str(error)))
        tab.page.on(
            "console",
            lambda message: complain(message.text) if message.type == "error" else None,
        )
        opened.append((context, tab))
        return tab

    yield make
    for context, tab in opened:
        tab.page.unroute_all(behavior="ignoreErrors")  # what is under way ends with its tab
        context.close()
        assert tab.complaints == []
        assert tab.requests, "it asked the server"
        for url in tab.requests:
            assert url.startswith((f"{tab.url}/", "blob:", "data:")), "it asked another host"


@pytest.fixture
def tab(open_tab: OpenTab) -> Tab:
    return open_tab()


def shown(value: float) -> str:
    """A value of the API as the page writes it: the shortest digits that mean it."""
    if value <= -9999:
        return "\N{MINUS SIGN}∞"
    if value == int(value):
        return str(int(value))
    if abs(value) >= 1e-6:  # as JavaScript does; Python begins with exponents at 1e-4
        return f"{Decimal(repr(value)):f}"
    return re.sub("e-0", "e-", repr(value))


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]
