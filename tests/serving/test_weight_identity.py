"""An updated server is a server that was started on the new weights, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from demo import MODEL_FOLDER
from tests.engine.models.formats.kinds import EVEN, KINDS
from tests.engine.models.formats.packers import write_quantized
from tests.engine.models.rewriting import write_other
from tests.serving.process import Server, serve
from tests.serving.rollouts import decided, done, generated, numbers, scored, update
from tests.serving.tiny_folders import SIZES, add_tokenizer, write_with_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EAGLE_FOLDER = MODEL_FOLDER.parent / "eagle"


def demo(folder: Path) -> None:
    copytree(MODEL_FOLDER, folder)


def experts(folder: Path) -> None:
    write_with_tokenizer("qwen3_moe", folder)


def quantized(kind: str) -> Callable[[Path], None]:
    """A checkpoint that brings its own quantization."""

    def write(folder: Path) -> None:
        config, modules = KINDS[kind]
        write_quantized(folder, config, modules, EVEN | SIZES)
        add_tokenizer(folder)

    return write


def everything(server: Server) -> list[Any]:
    """What weights decide of replies of every kind, in an order of requests of its own."""
    seeded, greedy = generated(server), generated(server, temperature=0)
    return [numbers(seeded), numbers(greedy), scored(server), decided(server)]


KINDS_OF_SERVERS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "float8 at load": (demo, ["--quantization", "fp8"]),
    "float8 by channel": (quantized("fp8 by channel"), []),
    "float8 by block": (quantized("fp8 by block"), []),
    "int4": (quantized("awq"), []),
    "experts": (experts, ["--enable-return-routed-experts"]),
    "ranks": (demo, ["--tensor-parallel-size", "2"]),
    "ranks of experts": (
        experts,
        ["--tensor-parallel-size", "2", "--enable-return-routed-experts"],
    ),
}


@pytest.mark.parametrize("kind", KINDS_OF_SERVERS)
def test_an_updated_server_is_a_fresh_one(kind: str, tmp_path: Path) -> None:
    write, flags = KINDS_OF_SERVERS[kind]
    write(tmp_path / "old")
    write_other(tmp_path / "old", tmp_path / "new")
    with serve("--model", str(tmp_path / "new"), *flags) as fresh:
        wanted = everything(fresh)
    with serve("--model", str(tmp_path / "old"), "--enable-weight-updates", *flags) as server:
        before = everything(server)
        update(server, tmp_path / "new", "new")
        assert everything(server) == wanted != before
        update(server, tmp_path / "old", "old")
        assert everything(server) == before


def eagle(folder: Path) -> list[str]:
    config = {"method": "eagle", "model": str(folder), "num_speculative_tokens": 3}
    return ["--speculative-config", json.dumps(config)]


def test_a_drafter_is_updated_or_switched_off(tmp_path: Path) -> None:
    """The tokens of a seed follow from drafts: as a server with the new drafter, or with none."""
    folders = {"old": MODEL_FOLDER, "new": tmp_path / "new"}
    write_other(MODEL_FOLDER, folders["new"])
    write_other(EAGLE_FOLDER, tmp_path / "eagle")
    model = ["--model", str(folders["new"])]
    with serve(*model, *eagle(tmp_path / "eagle")) as fresh:
        drafting = everything(fresh)
    with serve(*model) as fresh:
        plain = everything(fresh)
    with serve("--enable-weight-updates", *eagle(EAGLE_FOLDER)) as server:
        before = everything(server)
        update(server, folders["new"], "new", drafter="off")
        assert done_info(server)["drafter"] == "off"
        assert everything(server) == plain
        done(server, "/start_draft_weight_update")
        info = {"path": str(tmp_path / "eagle")}
        done(server, "/update_weights", {"update_info": info})
        done(server, "/finish_weight_update")
        state = done_info(server)
        assert (state["drafter"], state["weight_version"]) == ("current", "new")
        assert everything(server) == drafting
        update(server, folders["old"], "old")
        assert done_info(server)["drafter"] == "stale"
        assert numbers(generated(server, temperature=0)) == before[1], "it drafts, never wrongly"


def done_info(server: Server) -> Any:
    return server.get("/weight_info").json()
