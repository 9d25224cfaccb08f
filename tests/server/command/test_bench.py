"""`tailrace bench` as it is typed, against a server that is faked."""

from __future__ import annotations

from pathlib import Path

import pytest

from server import cli
from server.bench.results import read_results
from tests.server.bench.fake_server import fake_server

SMALL = ("--num-requests", "8", "--output-tokens", "4", "--repeat", "2", "--processes", "2")


def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, html = tmp_path / "a.json", tmp_path / "a.html"
    with fake_server(key="secret", token_s=0.002) as fake:
        kept = ("--output", str(output), "--html", str(html), "--api-key", "secret")
        loads = ("--workloads", "stream,chat", "--concurrency", "2,4")
        assert cli.main(["bench", "--base-url", f"{fake.url}/v1", *SMALL, *loads, *kept]) == 0
        assert len(fake.bodies) == 2 * 2 * 2 * 8
    table = capsys.readouterr().out.splitlines()
    assert table[0] == f"fake at {fake.url}"
    assert [row.split()[:2] for row in table[2:]] == [
        *(["stream", "2"], ["stream", "4"], ["chat", "2"], ["chat", "4"]),
    ]
    results = read_results(output)
    assert [len(point.passes) for point in results.points] == [2] * 4
    written = output.read_text() + html.read_text()
    assert "secret" not in written
    assert "<svg" in written

    assert cli.main(["bench", "compare", str(output), str(output)]) == 0
    ratios = {line.split()[5] for line in capsys.readouterr().out.splitlines()[1:]}
    assert ratios == {"1.000"}


def test_failures_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(breaks=("drop", 4)) as fake:
        loads = ("--workloads", "stream", "--base-url", fake.url)
        assert cli.main(["bench", *SMALL, *loads]) == 1
    out = capsys.readouterr().out
    assert "    failed 4 x: the server closed the connection\n" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--base-url", "http://127.0.0.1:1"], "http://127.0.0.1:1 cannot be reached"),
        (["--base-url", "localhost"], "--base-url must be http://HOST:PORT"),
        (["--workloads", "nonsense"], "--workloads: no workload 'nonsense'; there are single"),
        (["--workloads", ","], "--workloads: none is named"),
        (["--concurrency", "4,x"], "--concurrency must be numbers of 1 or more, got '4,x'"),
        (["--concurrency", "0"], "--concurrency must be numbers of 1 or more, got '0'"),
        (["--repeat", "0"], "argument --repeat: must be at least 1, got 0"),
        (["--rate", "nan"], "argument --rate: must be above 0, got nan"),
        (["--concurency=1"], "did you mean --concurrency?"),
        (["compare", "/nowhere/a.json", "b"], "/nowhere/a.json cannot be read"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        raise SystemExit(cli.main(["bench", *arguments]))
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_mistakes_that_the_server_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_server(key="k") as fake:
        assert cli.main(["bench", "--base-url", fake.url]) == 2
        assert "refuses the key (401: wrong key); see --api-key" in capsys.readouterr().err
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        assert cli.main(["bench", "--base-url", fake.url, "--model", "x"]) == 2
        assert "has no model 'x'; it has 'fake', 'other'" in capsys.readouterr().err
        nowhere = str(tmp_path / "nowhere" / "a.json")
        assert cli.main(["bench", "--base-url", fake.url, "--output", nowhere]) == 2
        assert f"--output {nowhere} cannot be written" in capsys.readouterr().err
        assert fake.bodies == []
