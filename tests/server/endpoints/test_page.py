"""The page's files: who may load them, under which rules, their size, and whose they are."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest

from server.endpoints.page import names
from tests.server.conftest import Site, in_process, on_a_port

FOLDER = Path(__file__).parents[3] / "server" / "page"
OWN = sorted(
    path
    for path in FOLDER.rglob("*")
    if path.suffix in (".js", ".css", ".html") and path.parent.name != "vendor"
)
IMPORT = re.compile(r"""(?:[}\w*]\s*\bfrom|\bimport\s*\(?)\s*["']([^"']+)["']""")
MAX_COMPRESSED = 300_000
MAX_LINES, MAX_FILES = 300, 20


def path_of(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


async def test_files_come_with_their_type_and_rules(site: Site) -> None:
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for name in names() | {""}:
        reply = await site.client.get(f"/page/{name}" if name else "/")
        assert reply.status_code == 200, name
        wanted = kinds.get(name.rpartition(".")[2], "text/html")
        assert reply.headers["content-type"].startswith(wanted)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        rules = dict(
            rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; ")
        )
        assert rules["default-src"] == "'none'"
        own = [each for rule, each in rules.items() if rule.endswith("-src")]
        assert set(own) == {"'none'", "'self'"}, "no inline code, no other host"
        assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert rules["trusted-types"] == "'none'"


async def test_files_are_compressed_for_those_who_can_read_that(site: Site) -> None:
    plain = await site.client.get("/page/main.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == (FOLDER / "main.js").read_bytes()
    packed = await site.client.get("/page/main.js", headers={"accept-encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content, "the client has unpacked it"


async def test_an_unchanged_file_is_not_sent_again(site: Site) -> None:
    first = await site.client.get("/")
    again = await site.client.get("/", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = await site.client.get("/", headers={"if-none-match": '"0"'})
    assert other.status_code == 200


@pytest.mark.parametrize(
    "path",
    ["nothing.js", "../config.py", "%2e%2e/config.py", "vendor/README.md", "vendor", "", "lib/"],
)
async def test_nothing_else_is_found_there(site: Site, path: str) -> None:
    assert (await site.client.get(f"/page/{path}")).status_code == 404


async def test_no_page() -> None:
    async with in_process(page=False) as site:
        for path in ("/", "/page/main.js"):
            assert (await site.client.get(path)).status_code == 404


async def test_the_page_is_open_and_what_it_asks_needs_the_key() -> None:
    async with in_process(api_keys=("secret",)) as site:
        for path in ("/", "/page/main.js"):
            assert (await site.client.get(path)).status_code == 200
        for path in ("/server_info", "/metrics"):
            assert (await site.client.get(path)).status_code == 401
        assert (await site.client.post("/verify")).status_code == 401
        known = {"authorization": "Bearer secret"}
        assert (await site.client.get("/server_info", headers=known)).status_code == 200


async def test_links_are_relative() -> None:
    """So the page works behind a proxy that shows the server under a path."""
    async with on_a_port(root_path="/some/path") as site:
        page = (await site.client.get("/")).text
        links = re.findall(r'(?:href|src)="([^"]+)"', page)
        assert len(links) > 5
        for link in links:
            assert not link.startswith("/")
            if link.startswith("page/"):
                assert (await site.client.get(f"/{link}")).status_code == 200


def test_the_document_has_no_inline_code() -> None:
    page = (FOLDER / "index.html").read_text()
    assert "<style" not in page
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"""\s(?:on\w+|style)\s*=\s*["']""", page) == []


def test_modules_import_what_is_there() -> None:
    seen = 0
    for path in FOLDER.rglob("*.js"):
        code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for name in IMPORT.findall(code):
            assert name.startswith("."), f"{path} imports {name}"
            assert (path.parent / name).resolve().is_file(), f"{path} imports {name}"
            seen += 1
    assert seen > 50


def test_nothing_of_the_page_comes_from_elsewhere() -> None:
    for path in OWN:
        assert re.findall(r"https?://", path.read_text()) == [], path


def test_text_never_becomes_html() -> None:
    """What a model writes goes into text nodes; the rules of the page forbid the rest besides."""
    banned = re.compile(r"innerHTML|outerHTML|insertAdjacent|dangerously|document\.write|\beval\b")
    assert [path for path in OWN if banned.search(path.read_text())] == []


def test_the_key_is_never_part_of_an_address() -> None:
    users = [path.name for path in OWN if re.search(r"\bkey\.value\b", path.read_text())]
    assert sorted(users) == ["api.js", "server.js", "shell.js", "snippet.js"]
    storage = [path.name for path in OWN if "sessionStorage" in path.read_text()]
    assert storage == ["api.js"]


def test_the_page_is_small() -> None:
    files = [FOLDER / name for name in names()]
    sizes = [len(gzip.compress(path.read_bytes(), 9)) for path in files]
    assert sum(sizes) <= MAX_COMPRESSED


def test_modules_are_small() -> None:
    assert [path for path in OWN if len(path.read_text().splitlines()) >= MAX_LINES] == []
    folders = Counter(path.parent for path in OWN)
    assert max(folders.values()) <= MAX_FILES


def test_libraries_tell_where_they_are_from() -> None:
    about = (FOLDER / "vendor" / "README.md").read_text()
    licences = (FOLDER / "vendor" / "LICENSES.txt").read_text()
    reported = set(re.findall(r"`([\w-]+\.(?:js|css))`", about))
    assert reported == {path.name for path in (FOLDER / "vendor").glob("*.[jc]s*")}
    for package in re.findall(r"`(@?[\w/-]+)` \d+\.\d+\.\d+ \|", about):
        assert f"== {package}" in licences
