"""The direction of imports, who stays free of torch, folders, and names of classes."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.house import CONTRACTS, FILES, GROUND, PACKAGES, ROOMS, ROOT

MAX_MODULES = 20
"""A folder holds directly."""

NO_TORCH = [
    *(
        "engine/arrays.py",
        "engine/awake.py",
        "engine/memory/blocks.py",
        "engine/memory/snapshots.py",
        "engine/client.py",
        "engine/config.py",
        "engine/contracts/info.py",
        "engine/contracts/status.py",
    ),
    "engine/parent.py",
    "engine/contracts/control.py",
    *("engine/adapters/registry.py", "engine/contracts/adapters.py"),
    "engine/contracts/scoring.py",
    "engine/contracts/weights.py",
    "engine/audit/drawn.py",
    *(
        "engine/contracts/shared_blocks.py",
        "engine/engine.py",
        "engine/step_parts.py",
        "engine/plan.py",
        "engine/contracts/runner.py",
        "engine/step_pipeline.py",
        "engine/loop.py",
        "engine/process.py",
    ),
    *("engine/ranked.py", "engine/rows.py", "engine/speculative_config.py", "engine/stats.py"),
    *("engine/submission.py", "sampling/params.py"),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "engine/messages").glob("*.py")),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "engine/planning").glob("*.py")),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "engine/control").glob("*.py")),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "engine/scoring").glob("*.py")),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "engine/structured").glob("*.py")),
]


def imported(path: Path) -> set[str]:
    """Modules a file imports anywhere, for types only too, by full name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


def ours(name: str) -> set[str]:
    """Modules of the three packages that a module imports."""
    return (imported(FILES[name]) & set(FILES)) - {name}


def level(name: str) -> int:
    """A module's height in its package: its room's index, -1 for a contract, -2 for the ground."""
    package, _, place = name.partition(".")
    if place.split(".")[0] in GROUND.get(package, ()):
        return -2
    if place in CONTRACTS[package] or place.split(".")[0] in CONTRACTS[package]:
        return -1
    rooms = [room for room in ROOMS[package] if place == room or place.startswith(f"{room}.")]
    assert rooms, f"{name} is in no room and no contract: name it in this file"
    return ROOMS[package].index(max(rooms, key=len))


@pytest.mark.parametrize("name", FILES)
def test_imports_run_down_the_house(name: str) -> None:
    package = name.split(".")[0]
    above = set(PACKAGES[PACKAGES.index(package) + 1 :]) | {"tests", "benchmarks", "deploy"}
    assert not tops(FILES[name]) & above
    for other in ours(name):
        if other.split(".")[0] == package:
            assert level(other) <= level(name), f"{name} imports {other}, which is above it"


def test_no_import_goes_in_a_circle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(ours(name)):
                visit(other, (*path, name))
            done.add(name)

    for name in FILES:
        visit(name, ())


def test_rooms_stay_small() -> None:
    counts: dict[str, int] = {}
    for name in FILES:
        folder = name.rpartition(".")[0]
        counts[folder] = counts.get(folder, 0) + 1
    assert {folder: n for folder, n in counts.items() if n > MAX_MODULES} == {}


def test_no_two_classes_share_a_name() -> None:
    """A name means one class, so that a search for it finds one. A private class, `_Work`, is seen
    only in its own module, where it cannot be taken for another's."""
    homes: dict[str, list[str]] = {}
    demo = {str(path.relative_to(ROOT)): path for path in (ROOT / "demo").rglob("*.py")}
    for name, path in (FILES | demo).items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert len(homes) > 100, "classes were looked for where there are some"
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_every_folder_is_packaged() -> None:
    """A wheel holds the packages that are listed, and no others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {name.rpartition(".")[0] for name in FILES} | {"demo", "demo.decisions"}
    listed = project["tool"]["setuptools"]["packages"]
    assert sorted(folders) == sorted(listed)


@pytest.mark.parametrize("path", sorted((ROOT / "server").rglob("*.py")), ids=lambda p: p.stem)
def test_server_has_no_torch(path: Path) -> None:
    assert not tops(path) & {"torch", "triton", "flashinfer"}


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("server.bench.")])
def test_the_client_knows_no_server(name: str) -> None:
    """What measures any server asks of ours nothing but HTTP."""
    others = {other for other in ours(name) if not other.startswith("server.bench.")}
    assert others <= {"engine.errors", "server.version"}


def test_no_endpoint_is_made_of_another() -> None:
    """What several need is in a room below; `systemone` is another spelling of decisions."""
    endpoints = {
        name: name.split(".")[2]
        for name in FILES
        if name.startswith("server.endpoints.") and name.count(".") == 3
    }
    shared = {
        (endpoints[name], endpoints[other])
        for name in endpoints
        for other in ours(name)
        if other in endpoints and endpoints[other] != endpoints[name]
    }
    assert len(set(endpoints.values())) > 6
    assert shared <= {("systemone", "decisions")}


def test_nothing_is_imported_from_a_module_of_tests() -> None:
    """What several need is in a support module, which runs no test and brings no mark."""
    paths = [path for top in ("tests", "benchmarks", "demo") for path in (ROOT / top).rglob("*.py")]
    borrowed = {(path.name, name) for path in paths for name in imported(path)}
    assert [each for each in borrowed if re.match(r"tests\.(\w+\.)*test_", each[1])] == []


@pytest.mark.parametrize("name", NO_TORCH)
def test_planning_has_no_torch(name: str) -> None:
    """Also not through what they import, as far as it is ours and imported on loading."""
    seen, todo = set(), [ROOT / name]
    while todo:
        path = todo.pop()
        seen.add(path)
        tree = ast.parse(path.read_text())
        for node in tree.body:  # imports inside functions are meant to be late
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [module] if module else [a.name for a in getattr(node, "names", [])]
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            assert "torch" not in {n.split(".")[0] for n in names}, path
            within = (ROOT / (n.replace(".", "/") + ".py") for n in names if n)
            todo += [p for p in within if p.exists() and p not in seen]
