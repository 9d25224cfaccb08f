"""The report is one page that asks for nothing and trusts nobody's names."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from server.bench.figures import curves, figures
from server.bench.report import report, write_report
from server.bench.results import Pass, Point
from tests.server.bench.made import point, results, share, stream

SCRIPT = "</style><script>alert(1)</script>"


def measured(workload: str, concurrency: int) -> Point:
    shares = [share(stream(0.5, 0.1, 0.3), stream(0.2, 0.2), seconds=1.0)]
    return Point(
        workload=workload,
        concurrency=concurrency,
        rate=None,
        num_requests=2,
        passes=[Pass(figures=figures(shares, 1), errors={})],
        best=0,
        curves=curves(shares),
    )


class Tags(HTMLParser):
    """Tags that were opened and not closed, and those that were seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_has_no_links(tmp_path: Path) -> None:
    page = report(results(measured("stream", 1), measured("stream", 4), measured("chat", 4)))
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("figure") == 4 + 2 * 5  # against concurrency, and of each workload
    assert "http" not in page.replace("http://h:80", "").replace("http-equiv", "")
    assert len(re.findall(r"<polyline", page)) == 4 * 2 + 5 * (2 + 1)
    write_report(results(), tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_what_a_server_says_is_text() -> None:
    page = report(results(point("x", 1, 1.0, errors={SCRIPT: 1}), model=SCRIPT, base_url=SCRIPT))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
