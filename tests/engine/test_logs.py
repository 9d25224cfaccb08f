"""Log lines: one format, as text and as JSON, that what clients send cannot break."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys

import pytest

from engine.logs import FIELDS, JsonFormatter, TextFormatter, escaped, source


def record(message: str, *args: object, **fields: int) -> logging.LogRecord:
    name, extra = "engine.x", {FIELDS: fields}
    return logging.getLogger(name).makeRecord(
        name, logging.INFO, "", 0, message, args, None, None, extra
    )


def test_text() -> None:
    line = TextFormatter().format(record("took %d s", 5))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO engine: took 5 s", line)


def test_json() -> None:
    line = json.loads(JsonFormatter().format(record("a\nb", status=200)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {"level": "INFO", "source": "engine", "message": "a\nb", "status": 200}


@pytest.mark.parametrize(
    ("name", "called"),
    [
        *(("engine.startup.build", "engine"), ("sampling.sampler", "sampling")),
        *(("tailrace", "server"), ("tailrace.access", "access"), ("uvicorn.error", "http")),
        *(("py.warnings", "python"), ("transformers.x", "transformers")),
    ],
)
def test_sources(name: str, called: str) -> None:
    assert source(name) == called


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(("é 日", "é 日"), ("a\r\nb", "a\\r\\nb"), ("\x1b[2J", "\\x1b[2J"), ("\x9b", "\\x9b")),
        *(("\u2028\u202e", "\\u2028\\u202e"), ("\x00\x7f", "\\x00\\x7f")),
    ],
)
def test_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_traceback_is_indented_and_escaped() -> None:
    try:
        raise ValueError("one\nINFO forged\x1b")
    except ValueError as error:
        broken = record("broke")
        broken.exc_info = (ValueError, error, error.__traceback__)
    first, *below = TextFormatter().format(broken).splitlines()
    assert first.endswith("engine: broke")
    assert below
    assert all(line.startswith("    ") for line in below)
    assert below[-1] == "    INFO forged\\x1b"
    assert "ValueError: one\nINFO forged" in json.loads(JsonFormatter().format(broken))["error"]


def test_all_lines_go_one_way() -> None:
    """Ours from the level on, those of libraries and warnings too, and nothing twice."""
    program = (
        "import logging, warnings\n"
        "from engine.logs import adopt_library_lines, configure_logging\n"
        "library = logging.getLogger('transformers')\n"
        "library.addHandler(logging.StreamHandler())\n"
        "library.propagate = False\n"
        "configure_logging('info', 'text', 'engine')\n"
        "adopt_library_lines()\n"
        "logging.getLogger('engine.a').info('one')\n"
        "logging.getLogger('engine.a').debug('two')\n"
        "logging.getLogger('library').info('three')\n"
        "logging.getLogger('library').warning('four')\n"
        "logging.getLogger('transformers').warning('five')\n"
        "warnings.warn('six')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    heads = re.findall(r"^\S+ \S+ (\w+ \w+: (?:one|four|five|.*six))", done.stderr, re.MULTILINE)
    assert [head.split(":")[0] for head in heads] == [
        *("INFO engine", "WARNING library", "WARNING transformers", "WARNING python"),
    ]
    assert "two" not in done.stderr
    assert "three" not in done.stderr
