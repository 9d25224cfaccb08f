"""In which caches starts are timed, and on which servers streams are counted."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import serving_figures
from benchmarks.serving_figures import PACKED, SMALL, STARTS, start_figures
from benchmarks.shapes import TINY
from server.bench.figures import Figures

VARIABLES = ("TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")


class Commands:
    """Servers and other commands in place of real ones; each leaves kernels in Triton's cache.

    Attributes:
        run: what was started, with the number of kernels that Triton's cache had.
        caches: the folders of both caches, by what was started.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run: list[tuple[str, int]] = []
        self.caches: list[tuple[str, ...]] = []
        self.flags: list[tuple[str, ...]] = []
        self.paths: list[str] = []
        monkeypatch.setattr(serving_figures, "serving", self.serving)
        monkeypatch.setattr(serving_figures, "subprocess", SimpleNamespace(run=self.command))

    @contextlib.contextmanager
    def serving(self, model: str, *flags: str) -> Iterator[str]:
        assert Path(model, "config.json").exists()
        self._note("serve", flags)
        yield "http://server"

    def command(self, words: tuple[str, ...], *, check: bool) -> None:
        assert check
        assert Path(words[4], "config.json").exists(), "a model's modules, not those of an image"
        self._note(words[3], words[5:])

    def _note(self, what: str, flags: tuple[str, ...]) -> None:
        folder = Path(os.environ["TRITON_CACHE_DIR"])
        self.run.append((what, len(list(folder.iterdir()))))
        self.caches.append(tuple(os.environ[name] for name in VARIABLES))
        self.flags.append(flags)
        self.paths.append(os.environ.get("PYTHONPATH", ""))
        (folder / "kernel").touch()


def test_starts_are_timed_beside_no_build_and_with_what_their_names_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "the user's")
    commands = Commands(monkeypatch)
    names = [made["name"] for made in start_figures(TINY)]
    # Without a GPU there are no kernels to pack.
    assert names == [f"{TINY}, start until ready, {name}" for name in STARTS if name != PACKED]
    assert commands.run == [("serve", 0), ("warmup", 1), ("serve", 0), ("serve", 1)]
    assert len({modules for _, modules in commands.caches}) == 1
    served = [flags for (what, _), flags in zip(commands.run, commands.flags, strict=True)]
    waits = ["--no-wait-for-kernels" not in flags for flags in served]
    assert waits == [False, True, False, False], "a warm-up waits, a start that is timed does not"
    assert [os.environ[name] for name in VARIABLES] == ["the user's"] * 2


def test_a_start_with_a_pack_has_no_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = os.environ.get("PYTHONPATH")
    commands = Commands(monkeypatch)
    assert [made["name"] for made in start_figures(TINY)][-1].endswith(PACKED)
    assert [what for what, _ in commands.run[-2:]] == ["warmup", "serve"]
    assert commands.run[-1] == ("serve", 0)
    assert commands.flags[-2][-2] == "--pack"
    assert commands.paths[-1].split(os.pathsep)[0] == commands.flags[-2][-1]
    assert os.environ.get("PYTHONPATH") == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_starts_are_timed_on_a_cpu() -> None:
    made = list(start_figures(TINY))
    assert len(made) == len(STARTS) - 1
    assert min(each["value"] for each in made) > 0.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What `bench` was asked for: the server's flags as its URL, workloads, flags."""
    found: list[tuple[str, ...]] = []

    @contextlib.contextmanager
    def serving(model: str, *flags: str) -> Iterator[str]:
        yield " ".join(flags)

    def bench(
        url: str, shape: str, workloads: str, *flags: str, processes: int = 6
    ) -> dict[str, Figures]:
        found.append((url, workloads, *flags))
        rate = 140.0 if "1024" in flags else 100.0
        figures: Figures = defaultdict(lambda: 1.0, output_tokens_per_s=rate)
        return dict.fromkeys(workloads.split(","), figures)

    async def measure(*_: Any) -> dict[str, float]:
        return defaultdict(lambda: 1.0)

    monkeypatch.setattr(serving_figures, "serving", serving)
    monkeypatch.setattr(serving_figures, "bench", bench)
    monkeypatch.setattr(serving_figures, "measure", measure)
    monkeypatch.setattr(serving_figures, "_first_token_ms", lambda url, attempt: 1.0)
    monkeypatch.setattr(serving_figures, "_check", lambda url, model: "checked")
    return found


def test_a_thousand_streams_have_a_row_each(asked: list[tuple[str, ...]]) -> None:
    made = {each["name"]: each for each in serving_figures.serving_figures(SMALL)}
    assert made[f"{SMALL}, 1,024 streams: throughput over 256"]["value"] == 1.4
    assert {each["check"] for each in made.values()} == {"checked"}
    many = [words for words in asked if "--max-num-seqs 1024" in words[0]]
    sizes = [words[words.index("--num-requests") + 1] for words in many]
    seeds = [words[words.index("--seed") + 1] for words in many]
    assert sizes == ["256", "1024"]
    assert len(set(seeds)) == 2, "no prompt is in a cache"
    others = [words for words in asked if words not in many]
    assert not [words for words in others if "--num-requests" in words], "256 rows hold 256 streams"
