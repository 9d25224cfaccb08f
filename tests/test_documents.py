"""What the documents name is there, and docstrings begin with plain sentences."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from engine.stats import AdapterStats
from server.audit.command import add_audit
from server.command.bench_flags import add_bench
from server.command.deploy import add_deploy
from server.command.settings import Settings, flag_of
from server.conformance.command import add_conformance
from tests.house import CONTRACTS, FILES, GROUND, PACKAGES, ROOMS, ROOT
from tests.server.conftest import in_process

PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
TESTING = (ROOT / "docs/testing.md").read_text()

FOLDERS = (*PACKAGES, "benchmarks", "demo", "deploy", "docs", "examples", "tests", "website")
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:/[\w.*-]*)+")
DOTTED = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:\.\w+)+")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OTHER_FLAGS = {
    "--seconds",
    *("--head", "--address", "--generate"),  # of Ray
    *("--quick", "--kernels", "--pack", "--help", "--version", "--full", "--parts", "--build"),
    *("--target", "--gpus", "--ipc", "--json", "--network", "--shape", "--tasks"),
    *("--limit-mm-per-prompt", "--structured-outputs-config"),  # of vLLM, which may be pasted
}
"""Flags that are not settings of the server."""


def spoken(page: Path) -> str:
    """A page without its examples of code."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def quoted(text: str) -> list[str]:
    """What is between backticks, paragraph by paragraph."""
    return [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", text)]


def names_of(node: ast.AST) -> Iterator[str]:
    """Names that the body of a module or class binds, `self.x` of its methods among them."""
    for child in ast.walk(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield child.name
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield child.attr


def is_there(dotted: str) -> bool:
    """Whether a module, or a name in one, exists."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        if count == len(parts) and path.is_dir():
            return True
        if path.with_suffix(".py").is_file():
            node: ast.AST = ast.parse(path.with_suffix(".py").read_text())
            for name in parts[count:]:
                if name not in set(names_of(node)):
                    return False
                classes = [n for n in ast.walk(node) if isinstance(n, ast.ClassDef)]
                node = next((n for n in classes if n.name == name), node)
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_modules_are_there(page: Path) -> None:
    words = quoted(spoken(page))
    paths = [word for word in words if PATH.fullmatch(word)]
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []
    dotted = [word for word in words if DOTTED.fullmatch(word) and "/" not in word]
    assert [name for name in dotted if not is_there(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_files_are_there(page: Path) -> None:
    """Where a page says `name` of `file.py`, or in it, the file says the name."""
    said = re.findall(r"`(\w+)`\s+(?:of|in)\s+`([\w/]+\.py)`", spoken(page))
    assert [pair for pair in said if pair[0] not in (ROOT / pair[1]).read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_are_there(page: Path) -> None:
    text = page.read_text()
    flags = {flag_of(field) for field in Settings.model_fields} | OTHER_FLAGS
    flags |= {flag.replace("--", "--no-", 1) for flag in flags} | flags_of_commands()
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))
    assert named - flags == set()


def flags_of_commands() -> set[str]:
    found = set()
    for add in (add_audit, add_bench, add_conformance, add_deploy):
        parser = argparse.ArgumentParser()
        add(parser)
        found |= set(re.findall(r"--[a-z-]+", parser.format_help()))
    return found


async def test_metrics_are_there() -> None:
    async with in_process() as site:
        await site.complete(prompt="x", max_tokens=1)
        assert site.engine.stats is not None
        site.engine.stats = structs.replace(site.engine.stats, adapters=AdapterStats())
        shown = (await site.client.get("/metrics")).text
    named = [name for page in PAGES for name in metrics_named(page)]
    assert len(named) > 10
    assert [name for name in named if f"\n{name}" not in shown] == []


def metrics_named(page: Path) -> list[str]:
    return re.findall(r"`(tailrace_[a-z_]+)", page.read_text())


def test_the_readme_links_every_page() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    pages = {str(page.relative_to(ROOT)) for page in PAGES} - {"README.md"}
    assert pages - linked == set()


def rooms_listed() -> list[str]:
    """Rooms of the table in the architecture, as the layering test writes them."""
    section = ARCHITECTURE.split("## Rooms")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)
    return [path.rstrip("/").removesuffix(".py").replace("/", ".") for path in listed]


def test_the_architecture_lists_the_rooms_from_top_to_bottom() -> None:
    rooms = [
        f"{package}.{room}"
        for package in reversed(PACKAGES)
        for room in (*reversed(ROOMS[package]), *GROUND.get(package, ()))
    ]
    assert rooms_listed() == rooms


def test_the_architecture_lists_the_contracts() -> None:
    section = ARCHITECTURE.split("## Contract modules")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([\w.]+)` \|", section, flags=re.MULTILINE)
    contracts = [f"{package}.{name}" for package in PACKAGES for name in CONTRACTS[package]]
    assert sorted(listed) == sorted(contracts)


def test_the_path_of_a_request_goes_down_the_rooms() -> None:
    steps = ARCHITECTURE.split("## One request")[1].split("\n8. ")[0]
    rooms = rooms_listed()
    passed = []
    for word in quoted(steps):
        name = word.rstrip("/").replace("/", ".")
        within = [room for room in rooms if f"{name}.".startswith(f"{room}.")]
        if within:
            passed.append(rooms.index(max(within, key=len)))
    assert len(passed) > 8
    assert passed == sorted(passed)


def public_docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Names and docstrings of a module and of what it and its classes have for others."""
    tree = ast.parse(path.read_text())
    todo: list[tuple[str, ast.Module | ast.ClassDef]] = [(path.stem, tree)]
    while todo:
        name, node = todo.pop()
        yield name, ast.get_docstring(node) or ""
        for child in node.body:
            if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                todo.append((child.name, child))
            elif isinstance(child, FUNCTIONS) and not child.name.startswith("_"):
                yield child.name, ast.get_docstring(child) or ""


@pytest.mark.parametrize("name", FILES)
def test_docstrings_begin_with_a_plain_sentence(name: str) -> None:
    """A sentence that begins so leaves out what it is about."""
    begins = re.compile(r"(Of|As|What becomes of)\b")
    docstrings = public_docstrings(FILES[name])
    assert [who for who, words in docstrings if begins.match(words)] == []


def own_tests() -> dict[str, list[str]]:
    """Modules of the packages with the tests that begin with their name, in the mirrored folder."""
    found: dict[str, list[str]] = {}
    for name, path in FILES.items():
        folder = ROOT / "tests" / path.parent.relative_to(ROOT)
        tests = [*folder.glob(f"test_{path.stem}.py"), *folder.glob(f"test_{path.stem}_*.py")]
        found[name] = [str(test.relative_to(ROOT)) for test in tests]
    return found


def test_every_module_has_a_test_of_its_name_or_a_line_in_the_table() -> None:
    section = TESTING.split("## Modules without a test of their name")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (`.+`) \| (`.+`) \|", section, flags=re.MULTILINE)
    tabled = {name for modules, _ in lines for name in quoted(modules)}
    without = {name for name, tests in own_tests().items() if not tests}
    assert without - tabled == set(), "say in docs/testing.md what covers them"
    assert tabled - without == set(), "these have a test of their name, or do not exist"


def test_every_test_has_a_module_s_name_or_a_line_in_the_table() -> None:
    section = TESTING.split("## Tests of something else than one module")[1].split("\n## ")[0]
    tabled = {
        path
        for path in quoted(section)
        if path.startswith("tests/") and path.endswith(".py") and "*" not in path
    }
    named = {test for tests in own_tests().values() for test in tests}
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / "tests" / package).rglob("test_*.py")
    }
    assert found - named - tabled == set(), "name them in docs/testing.md"
    assert tabled & named == set()
