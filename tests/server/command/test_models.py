"""Names of models that cannot be found are named at once, whether or not there is a network."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants

from engine.config import ConfigError
from server.command import models
from server.command.configure import engine_config
from server.command.models import check_models, check_name
from server.command.settings import load_settings


@pytest.fixture(autouse=True)
def _empty_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty directory and cache, and a hub that nobody may ask."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def _a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_hub_obstacle", lambda: None)


@pytest.mark.parametrize("name", ["./modle", "../x", "~/no such", "/nowhere", "a/b/c"])
@pytest.mark.parametrize("setting", ["model", "tokenizer"])
def test_a_typo_in_a_path(name: str, setting: str) -> None:
    settings = load_settings({setting: name})
    with pytest.raises(ConfigError, match="there is no such folder"):
        check_models(engine_config(settings), settings.tokenizer)


def test_of_a_drafter() -> None:
    text = '{"method": "eagle", "num_speculative_tokens": 4, "model": "./haed"}'
    config = engine_config(load_settings({"speculative_config": text}))
    with pytest.raises(ConfigError, match=r"^--speculative-config model \./haed: there is no such"):
        check_models(config, None)


@pytest.mark.parametrize("name", ["a folder", "a:b", "x/", "a/b.safetensors?"])
@pytest.mark.usefixtures("_a_hub")
def test_neither_a_folder_nor_an_id(name: str) -> None:
    with pytest.raises(ConfigError, match=r"neither a folder nor a hub id \(owner/name\)"):
        check_name("MODEL", name)


class TestFoldersHere:
    @pytest.mark.parametrize(
        ("name", "near"),
        [("modle", "./model"), ("./modle", "./model"), ("model/smal", "model/small")],
    )
    def test_the_nearest_is_named(self, name: str, near: str) -> None:
        Path("model/small").mkdir(parents=True)
        with pytest.raises(ConfigError, match=f"did you mean {near}[?]"):
            check_name("MODEL", name)

    @pytest.mark.usefixtures("_a_hub")
    def test_only_a_bare_name_is_refused_for_one(self) -> None:
        Path("org/name-7b").mkdir(parents=True)
        check_name("MODEL", "org/name-8b")
        check_name("MODEL", "orchid")
        with pytest.raises(ConfigError, match=r"did you mean \./org\? Models of the hub are named"):
            check_name("MODEL", "orgg")

    def test_a_folder_is_one_however_it_is_written(self) -> None:
        Path("model").mkdir()
        for name in ("model", "./model", str(Path("model").resolve())):
            check_name("MODEL", name)


class TestTheHub:
    @pytest.mark.parametrize("name", ["modle", "owner/modle"])
    def test_a_hub_that_is_not_there(self, name: str) -> None:
        """`.invalid` is the top level of names that never exist."""
        with pytest.raises(ConfigError) as error:
            check_name("MODEL", name)
        assert f"MODEL {name}: there is no such folder" in str(error.value)
        assert "hub.invalid:80" in str(error.value)
        assert "name a folder" in str(error.value)

    def test_one_that_may_not_be_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
            check_name("MODEL", "owner/name")

    @pytest.mark.parametrize("name", ["gpt2", "owner/name"])
    def test_what_is_in_the_cache_is_let_pass(self, name: str) -> None:
        folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
        (folder / "snapshots").mkdir(parents=True)
        check_name("MODEL", name)

    @pytest.mark.parametrize("by_proxy", [False, True])
    def test_a_hub_that_can_be_reached(
        self, by_proxy: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or its proxy: then the hub's own name need not be known here."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = "http://127.0.0.1:{1}".format(*listener.getsockname())
            if by_proxy:
                monkeypatch.setenv("http_proxy", url)
            else:
                monkeypatch.setattr(constants, "ENDPOINT", url)
            check_name("MODEL", "owner/name")

    def test_a_name_server_that_never_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(models, "CONNECT_S", 0.1)
        test_ended = threading.Event()

        def connect(*_: object) -> None:
            test_ended.wait()
            raise OSError("too late")

        monkeypatch.setattr(socket, "create_connection", connect)
        with pytest.raises(ConfigError, match=r"hub\.invalid:80: no connection within 0\.1 s"):
            check_name("MODEL", "owner/name")
        test_ended.set()


def test_the_command_asks_no_more_than_once() -> None:
    """What is imported later, torch and transformers, takes seconds and tries again and again."""
    program = (
        "import sys; from server import cli; status = cli.main(['serve', 'modle']);"
        "assert not any(map(sys.modules.get, ('torch', 'transformers', 'fastapi')));"
        "sys.exit(status)"
    )
    environment = {"HF_ENDPOINT": "http://hub.invalid"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tailrace: error: MODEL modle: there is no such folder")
