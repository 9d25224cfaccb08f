"""The site's pages without mkdocs: made of the code, complete, and linked to what is there."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml  # type: ignore[import-untyped]

from server.command.settings import ENVIRONMENT_ONLY, Settings, flag_of
from tests.server.conftest import in_process
from website import figures, reference
from website.canvas import Bar, bars
from website.links import OUTSIDE, with_links_of_site

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = reference.pages() | figures.pages()
PAGES = {
    **{str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("*.md")},
    **{place: (ROOT / name).read_text() for name, place in OUTSIDE.items()},
    **{path: text for path, text in MADE.items() if path.endswith(".md")},
}
FILES = {*PAGES, *MADE, *(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.*"))}
LINK = re.compile(r"\]\(([^)#:\s]*)(#[\w-]*)?\)")


def anchors_of(markdown: str) -> set[str]:
    """The anchors of a page's headings, as mkdocs makes them."""
    heads = re.findall(r"^#+ (.+)$", markdown, flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", head).strip().lower() for head in heads]
    return {"#" + re.sub(r"[-\s]+", "-", head) for head in plain}


@pytest.mark.parametrize("path", sorted(PAGES))
def test_links_of_the_site_lead_somewhere(path: str) -> None:
    markdown = with_links_of_site(PAGES[path], path)
    for target, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", markdown)):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        place = place if target else path
        assert place in FILES, f"{path} links {target}"
        if anchor and place in PAGES:
            assert anchor in anchors_of(PAGES[place]), f"{path} links {target}{anchor}"


def test_links_move_with_their_pages() -> None:
    text = "[a](docs/serving.md#limits) [b](SECURITY.md) [c](https://x.org/y.md)"
    assert with_links_of_site(text, "index.md") == (
        "[a](serving.md#limits) [b](security.md) [c](https://x.org/y.md)"
    )
    text = "[a](../serving.md) [b](../../SECURITY.md) [c](score.md)"
    assert with_links_of_site(text, "tutorials/evaluate.md") == (
        "[a](../serving.md) [b](../security.md) [c](score.md)"
    )


def test_the_navigation_has_every_page_once() -> None:
    def paths(part: Any) -> list[str]:
        if isinstance(part, dict):
            return [path for own in part.values() for path in paths(own)]
        return [path for each in part for path in paths(each)] if isinstance(part, list) else [part]

    nav = paths(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(nav) == sorted(PAGES)


@pytest.mark.parametrize("path", sorted(path for path in MADE if path.endswith(".md")))
def test_rows_of_tables_have_as_many_cells_as_their_heads(path: str) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", MADE[path], flags=re.MULTILINE):
        cells = [len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()]
        assert len(cells) > 2
        assert len(set(cells)) == 1, block


def test_every_flag_is_there_with_its_default() -> None:
    page = MADE["reference/flags.md"]
    named = set(re.findall(r"^\| `(--[\w-]+)`", page, flags=re.MULTILINE))
    assert {flag_of(name) for name in set(Settings.model_fields) - ENVIRONMENT_ONLY} <= named
    assert re.search(r"^\| `--port` \| .* Default: 8000. \|$", page, flags=re.MULTILINE)
    assert "| `TAILRACE_USE_FLASHINFER_SAMPLER` |" in page
    assert "| `--pipeline-parallel-size` | `1` |" in page


def test_every_field_is_there() -> None:
    page = MADE["reference/fields.md"]
    schemas = json.loads((DOCS / "openapi.json").read_text())["components"]["schemas"]
    for name, schema in schemas.items():
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for field in schema.get("properties", {}):
            assert f"\n| `{field}`" in section
    assert "## POST /v1/completions" in page
    assert "at least 0; at most 2" in page


def test_codes_of_errors_are_there() -> None:
    page = MADE["reference/errors.md"]
    for row in ("| 500 | `nan_logits` |", "| 400 | `no_token_allowed` |", "| 429 | `queue_full` |"):
        assert row in page


async def test_every_metric_of_a_server_is_there() -> None:
    page = MADE["reference/metrics.md"]
    async with in_process() as site:
        await site.complete(prompt="x", max_tokens=1)
        shown = (await site.client.get("/metrics")).text
    families = re.findall(r"^# TYPE (\w+(?<!_created)) ", shown, flags=re.MULTILINE)
    assert len(families) > 40
    assert [name for name in families if f"| `{name}` |" not in page] == []
    assert "| `tailrace_spec_decode_num_accepted_tokens_per_pos_total` |" in page


def test_every_chart_has_its_figures() -> None:
    names = [figure["name"] for figure in json.loads(figures.STORED.read_text())["figures"]]
    reported = PAGES["measured.md"].replace("\\|", "|")
    assert [name for name in names if f"\n| {name} |" not in reported] == []
    for chart in figures.CHARTS:
        matching = [name for name in names if re.fullmatch(chart.pattern, name)]
        assert len(matching) > 1, chart.title
        picture = ElementTree.fromstring(MADE[f"measured/{chart.file}.svg"])
        assert len(picture.findall("{*}rect")) == len(matching)


def test_bars_are_as_long_as_their_values() -> None:
    picture = ElementTree.fromstring(
        bars("a <b>", "ms", [Bar("x & y", 1.0, must=4.0), Bar("z", 2.0)])
    )
    long = [float(rect.attrib["width"]) for rect in picture.findall("{*}rect")]
    assert long == [330 / 4, 330 / 2]
    words = [text.text for text in picture.findall("{*}text")]
    assert words == ["a <b>, ms", "x & y", "1", "z", "2"]
