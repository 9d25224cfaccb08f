"""The start as a terminal shows it, and what it says when it has ended."""

from __future__ import annotations

import io
import sys
import time

import pytest
from msgspec import structs

from engine import progress
from engine.contracts.info import EngineInfo, ErrorStatement
from engine.progress import on_progress, phase, report
from server.command.progress import ProgressBar
from server.command.serve import error_line, summary
from server.config import ServerConfig


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_moves_and_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar() as bar:
        bar("importing", 0, 0)
        bar("importing", 1, 1)
        bar("loading weights", 0, 0)
        bar("loading weights", 30, 120)
        bar("loading weights", 90, 120)
    shown = [part.strip() for part in terminal.getvalue().split("\r")]
    assert any(part.startswith("importing: 00:0") for part in shown)
    assert any("loading weights:  25%|" in part and "30/120" in part for part in shown)
    assert any("loading weights:  75%|" in part for part in shown)
    assert shown[-1] == ""


def test_a_file_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with ProgressBar() as bar:
        bar("importing", 0, 0)
        bar("importing", 3, 5)
    assert file.getvalue() == ""


def test_phases_tell_their_progress_and_log_their_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[tuple[str, int, int]] = []
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "_reported_at", 101.0)  # by an earlier phase
    on_progress(lambda *news: reported.append(news))
    try:
        report(1, 5)  # in no phase
        with caplog.at_level("INFO", "engine.progress"), phase("loading weights"):
            for done in range(1, 4):
                clock[0] += 0.06
                report(done, 3)
        with pytest.raises(ValueError, match="broken"), phase("measuring memory"):
            raise ValueError("broken")
    finally:
        on_progress(lambda *news: None)
    assert reported == [
        *(("loading weights", 0, 0), ("loading weights", 1, 3), ("loading weights", 1, 1)),
        *(("measuring memory", 0, 0), ("measuring memory", 1, 1)),
    ]
    assert [record.getMessage() for record in caplog.records] == ["loading weights took 0.2 s"]


def test_the_summary() -> None:
    info = EngineInfo(
        vocab_size=8,
        max_model_len=2000,
        eos_token_ids=(),
        max_rows=256,
        num_blocks=300,
        block_size=16,
        dtype="bfloat16",
        device="NVIDIA H200",
        sampler="native",
    )
    lines = summary(ServerConfig(model_names=("m",)), info, "http://127.0.0.1:8000")
    text = "\n".join(lines)
    assert "serves m in bfloat16 on NVIDIA H200" in text
    assert "KV cache of 4,800 tokens: 2.4 times the context of 2,000" in text
    assert "sampler: native" in text
    assert "http://127.0.0.1:8000/v1" in text
    assert "http://127.0.0.1:8000/docs" in text
    assert "quantization" not in text


def test_the_summary_states_the_error_of_quantization() -> None:
    error = ErrorStatement(
        scheme="fp8",
        reference="unquantized weights in bfloat16",
        mean_kl=0.001234,
        max_logprob_gap=0.5678,
        text="t, 512 tokens",
    )
    assert error_line(error) == (
        "quantization (fp8): mean KL 0.0012 nats, logprobs up to 0.57 off, against unquantized "
        "weights in bfloat16 on t, 512 tokens"
    )
    assert "no number" in error_line(structs.replace(error, mean_kl=None))
