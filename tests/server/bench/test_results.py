"""Results are written and read again; another file is refused as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ConfigError
from server.bench.results import read_results, write_results
from tests.server.bench.made import point, results


def test_there_and_back(tmp_path: Path) -> None:
    curve = {"latency": [(50.0, 0.25)]}
    made = results(
        point("stream", 4, 2.0, 3.0, curves=curve, errors={"x": 2}),
        point("poisson", None, 3.0, rate=50.0),
    )
    write_results(made, tmp_path / "a.json")
    found = read_results(tmp_path / "a.json")
    assert found == made
    assert found.points[0].errors == {"x": 4}
    assert [each.where for each in found.points] == ["4", "50/s"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"{", "is not what tailrace bench writes: Input data was truncated"),
        (b'{"points": []}', "is not what tailrace bench writes: Object missing required"),
        (b'{"tailrace_bench": 2}', "Invalid enum value 2"),
    ],
)
def test_files_that_are_none(tmp_path: Path, raw: bytes | None, words: str) -> None:
    path = tmp_path / "a.json"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(ConfigError, match=words):
        read_results(path)
