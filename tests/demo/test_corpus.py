"""The corpus: what is in it, what is held out, and its archive."""

import hashlib
from pathlib import Path

import pytest

from demo.corpus import (
    Corpus,
    collect,
    decode_unique,
    is_held_out,
    is_library_source,
    read_archive,
    write_archive,
)


@pytest.fixture(scope="module")
def library() -> Corpus:
    return collect()


def test_held_out_rule_is_the_documented_hash() -> None:
    for path in ("tracemalloc.py", "calendar.py", "xml/etree/ElementTree.py"):
        first = hashlib.sha256(path.encode()).hexdigest()[:8]
        assert is_held_out(path) == (int(first, 16) % 25 == 0)


def test_known_modules_fall_where_the_shipped_model_had_them() -> None:
    held_out = ("tracemalloc.py", "functools.py", "ftplib.py", "test/test_logging.py")
    trained = ("calendar.py", "argparse.py", "json/decoder.py", "test/test_functools.py")
    assert all(is_held_out(path) for path in held_out)
    assert not any(is_held_out(path) for path in trained)


def test_parts_are_disjoint_and_complete(library: Corpus) -> None:
    training, held_out = library.training(), library.held_out()
    assert len(training) + len(held_out) == len(library.files)
    assert set(training).isdisjoint(held_out)
    assert len(held_out) >= 10
    assert 0.02 < len(held_out) / len(library.files) < 0.08


def test_collect_reads_the_library_and_nothing_beside_it(library: Corpus) -> None:
    assert {"functools.py", "json/decoder.py"} <= library.files.keys()
    assert not any("site-packages" in path for path in library.files)
    assert list(library.files) == sorted(library.files)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("argparse.py", True),
        ("test/test_sysconfig.py", True),
        ("_sysconfigdata__linux_x86_64-linux-gnu.py", False),
        ("config-3.11-x86_64-linux-gnu/python-config.py", False),
        ("site-packages/pip/__init__.py", False),
    ],
)
def test_machine_files_are_left_out(path: str, kept: bool) -> None:
    assert is_library_source(Path(path)) == kept


def test_copies_empty_and_foreign_encodings_are_left_out() -> None:
    sources = {"b.py": b"x = 1\n", "a.py": b"x = 1\n", "c.py": b" \n", "d.py": b"'\xe9'\n"}
    assert decode_unique(sources) == {"a.py": "x = 1\n"}


def test_archive_round_trips_and_depends_on_the_corpus_alone(tmp_path: Path) -> None:
    corpus = Corpus("3.11.7", {"a.py": "x = 'é'\r\n", "b/c.py": "y = 2\n"})
    first = write_archive(corpus, tmp_path / "first.tar.xz")
    assert write_archive(corpus, tmp_path / "second.tar.xz") == first
    assert read_archive(tmp_path / "first.tar.xz") == corpus
