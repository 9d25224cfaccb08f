"""The direction of imports, and which modules stay free of torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEVELS = {"sampling": 0, "engine": 1, "server": 2}
NO_TORCH = [
    "engine/blocks.py",
    "engine/client.py",
    "engine/config.py",
    "engine/engine.py",
    "engine/outputs.py",
    "engine/plan.py",
    "engine/process.py",
    "engine/request.py",
    "engine/rows.py",
    "engine/scheduler.py",
    "engine/scoring.py",
    "engine/scoring_plan.py",
    "engine/scoring_work.py",
    "engine/settle.py",
    "engine/stats.py",
    "engine/sharing.py",
    "engine/ticket.py",
    "engine/timings.py",
    "sampling/params.py",
]
MODULES = sorted(path for top in LEVELS for path in (ROOT / top).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Modules a file imports anywhere, by full name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_down_the_house(path: Path) -> None:
    level = LEVELS[path.relative_to(ROOT).parts[0]]
    above = {name for name in tops(path) & set(LEVELS) if LEVELS[name] > level}
    assert not above
    assert not tops(path) & {"tests", "benchmarks"}


@pytest.mark.parametrize("path", sorted((ROOT / "server").rglob("*.py")), ids=lambda p: p.stem)
def test_server_has_no_torch(path: Path) -> None:
    assert not tops(path) & {"torch", "triton", "flashinfer"}


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
            ours = (ROOT / (n.replace(".", "/") + ".py") for n in names if n)
            todo += [p for p in ours if p.exists() and p not in seen]
