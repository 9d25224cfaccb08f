"""Takes the README's pictures of the page: every view, light and dark, on a desk and on a phone.

    python -m tests.page.screenshots [--folder docs/images]

Seeds are fixed: pictures change where the page or the demo model does.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.page.conftest import CHROMIUM, FLAGS, SPECULATION, WAIT_MS, Tab, expect
from tests.serving.process import serve

DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
QUALITY = 80
PROMPT = "import json\n\n\ndef load(path):\n    with open("
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
ITEMS = ["un", "re", "path.", "mk", "list", "chmod(path, 0o644)\n    os.un"]
LABELS = ["link", "move", "name", "join", "dir"]


def write(tab: Tab) -> None:
    tab.open()
    tab.run(PROMPT, tokens="180", seed="42")
    tab.page.click(".tok[data-i='12']")


def compare(tab: Tab) -> None:
    tab.open()
    tab.page.locator(".settings").get_by_label("seed", exact=True).fill("5")  # of both
    tab.page.click(".settings >> text=Compare")
    tab.run(PROMPT, tokens="120", temperature="0.3")
    tab.page.locator(".pane").first.locator(".tok[data-i='5']").click()


def grammar(tab: Tab) -> None:
    tab.open()
    tab.page.locator(".settings summary").click()
    tab.page.select_option(".settings select", "json")
    tab.page.fill("[aria-label='The grammar']", json.dumps(SCHEMA))
    tab.run("settings = ", tokens="60", seed="3")
    tab.page.click("text=kept mass")
    tab.page.click(".tok[data-i='2']")


def score(tab: Tab) -> None:
    tab.open("#/score")
    tab.page.fill(".query textarea", "import os\n\ndef remove(path):\n    os.")
    tab.page.fill(".items textarea", "\n".join(json.dumps({"item": item}) for item in ITEMS))
    tab.page.fill(".labels textarea", "\n".join(LABELS))
    tab.page.click(".inputs button.main")
    expect(tab.page.locator(".scores")).to_be_visible()


def watch(tab: Tab) -> None:
    """The Server view, some seconds into a load."""
    tab.open("#/server")
    for count in (4, 24, 12):
        body = {"prompt": PROMPT, "max_tokens": 120, "n": count}
        httpx.post(f"{tab.url}/v1/completions", json=body, timeout=300).raise_for_status()
        tab.page.wait_for_timeout(2500)


class Shot(NamedTuple):
    """A picture: what is done before it is taken, and where."""

    name: str
    act: Callable[[Tab], None]
    scheme: str = "light"
    viewport: dict[str, int] = DESK


SHOTS = (
    Shot("write", write),
    Shot("compare-dark", compare, "dark"),
    Shot("grammar", grammar),
    Shot("phone", write, viewport=PHONE),
    Shot("phone-dark", score, "dark", PHONE),
    Shot("score", score),
    Shot("server-dark", watch, "dark"),
    Shot("server", watch),
)


def take(browser: Any, url: str, shot: Shot, folder: Path) -> None:
    """Take one picture into `folder`."""
    scale = 2 if shot.viewport is PHONE else 1
    context = browser.new_context(
        viewport=shot.viewport, color_scheme=shot.scheme, device_scale_factor=scale
    )
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.route("**/server_info", _without_place)
    shot.act(Tab(page, url))
    page.wait_for_timeout(1000)  # marks of what is under the pointer, and the last numbers
    wanted = {"format": "webp", "quality": QUALITY}
    taken = context.new_cdp_session(page).send("Page.captureScreenshot", wanted)
    (folder / f"{shot.name}.webp").write_bytes(base64.b64decode(taken["data"]))
    context.close()


def _without_place(route: Any) -> None:
    """Leave out of what the server says of itself where it was when the picture was taken."""
    reply = route.fetch()
    about = reply.json() | {"root": "demo/model"}
    about["flags"] = [flag for flag in about["flags"] if not flag.startswith("--port")]
    route.fulfill(response=reply, json=about)


def main() -> None:
    """Take all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    folder = parser.parse_args().folder
    with (
        serve("--speculative-config", SPECULATION, "--quantization", "fp8") as server,
        importlib.import_module("playwright.sync_api").sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for shot in SHOTS:
            take(browser, server.url, shot, folder)
        browser.close()


if __name__ == "__main__":
    main()
