"""The tokenizer as llguidance knows it, and what is said of one it cannot read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from demo import MODEL_FOLDER
from engine.config import StructuredConfig
from engine.parallel.programs import command_of
from engine.structured.tokenizer import TokenizerError, TokenizerReader
from engine.structured.tokenizer_program import serialized
from tests.engine.structured.constrained import EOS, TOKENIZER, Reader, make, of_schema, request


def reader(folder: Path) -> TokenizerReader:
    return TokenizerReader(StructuredConfig(tokenizer=str(folder)))


def test_ids_are_the_models_own_and_all_ends_end() -> None:
    tokenizer = reader(MODEL_FOLDER).result(9000, [EOS, 5])
    assert tokenizer.vocab_size == 9000
    assert sorted(tokenizer.eos_tokens) == [EOS, 5]
    text = 'x = {"a": "ü", "b": [1.5]}'
    assert tokenizer.decode_str(TOKENIZER.encode(text)) == text


def test_a_model_without_an_end() -> None:
    with pytest.raises(TokenizerError, match="no end-of-sequence id"):
        reader(MODEL_FOLDER).result(8192, [])


@pytest.mark.parametrize("end", [8190, 4000])
def test_tokens_that_the_model_cannot_give_are_left_out(end: int) -> None:
    """Their texts are still written, by other tokens."""
    tokenizer = reader(MODEL_FOLDER).result(end, [5])
    assert tokenizer.vocab_size == end
    text = 'x = {"a": "ü", "b": [1.5]}; returns'
    token_ids = tokenizer.tokenize_str(text)
    assert max(token_ids) < end
    assert tokenizer.decode_str(token_ids) == text
    whole = reader(MODEL_FOLDER).result(9000, [5])
    assert all(whole.decode_bytes([i]) == tokenizer.decode_bytes([i]) for i in range(6, end, 97))


def program(config: StructuredConfig) -> bytes:
    """What the program that reads tokenizers writes."""
    command = command_of("engine.structured.tokenizer_program")
    sent = msgspec.json.encode(config)
    return subprocess.run(command, input=sent, stdout=subprocess.PIPE, check=True).stdout


def test_a_process_reads_what_this_one_would(tmp_path: Path) -> None:
    config = StructuredConfig(tokenizer=str(MODEL_FOLDER))
    assert program(config) == b"ok\n" + serialized(config).encode()
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": None}))
    assert program(StructuredConfig(tokenizer=str(tmp_path))).startswith(b"failed\n")


def test_a_process_whose_engine_was_ended_says_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command_of("engine.structured.tokenizer_program"),
        input=msgspec.json.encode(StructuredConfig(tokenizer=str(MODEL_FOLDER))),
        stdout=write,
        stderr=subprocess.PIPE,
        check=True,
    )
    os.close(write)
    assert done.stderr == b""


def test_a_process_is_asked_where_this_one_would_import_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "transformers.models.auto.tokenization_auto", raising=False)
    tokenizer = reader(MODEL_FOLDER)
    assert tokenizer.token_ids("x = 1") == TOKENIZER.encode("x = 1")
    assert tokenizer.result(9000, [EOS]).vocab_size == 9000


def test_an_engine_without_a_readable_tokenizer_serves_all_but_grammars(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(MODEL_FOLDER / "tokenizer_config.json", tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": None}))
    engine = make(structured=StructuredConfig(tokenizer=str(tmp_path)))
    assert engine.info.grammar_error is not None
    assert str(tmp_path) in engine.info.grammar_error
    assert "requests with a grammar will be refused" in caplog.text
    replies = Reader(engine)
    replies.run(request(0, of_schema("flat"), n=2), request(1, None, max_tokens=3, seed=1))
    assert [end.name for end in replies.finish.values()].count("GRAMMAR") == 2
    assert str(tmp_path) in replies.errors[0]
    assert len(replies.tokens[1, 0]) == 3
    assert engine.stats().grammars is None
