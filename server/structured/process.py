"""A process that checks grammars, since a check in Rust can be ended in no other way.

llguidance bounds most of what a grammar may cost, but not all: `multipleOf` of a large number takes
minutes. So checks run where they can be killed, and where what they take of memory is bounded too.
"""

from __future__ import annotations

import multiprocessing
import resource
from multiprocessing.connection import Connection

import msgspec

from server.errors import ApiError, bad_request
from server.http.child import follow_parent
from server.structured.check import GrammarCheck
from server.structured.spec import CheckedGrammar, GrammarSpec, TokenTable

START_S = 120.0
"""A process that is not ready by then is given up."""
MEMORY_BYTES = 4 << 30
"""Beyond the vocabulary a check takes some megabytes."""


class CheckProcess:
    """One process; a thread at a time asks it.

    Args:
        vocabulary: what grammars are checked against.
        check_s: longest check, in seconds.
    """

    def __init__(self, vocabulary: bytes, check_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._check_s = check_s
        self._is_closed = False
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.send_bytes(vocabulary)
        if not self._connection.poll(START_S):
            self.close()
            raise TimeoutError(f"the process that checks grammars took over {START_S:g} s to start")
        self._connection.recv_bytes()

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked again."""
        return not self._is_closed and self._process.is_alive()

    def check(self, spec: GrammarSpec, raw: bytes) -> CheckedGrammar:
        """The grammar's source.

        Args:
            raw: the spec, packed.

        Raises:
            ApiError: the grammar is refused; the process may have ended with it.
        """
        try:
            self._connection.send_bytes(raw)
            if not self._connection.poll(self._check_s):
                self.close()
                raise _too_large(spec, f"more than {self._check_s:g} s to compile")
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            self.close()
            raise _too_large(spec, "too much memory to compile") from None
        if isinstance(answer, ApiError):
            raise answer
        assert isinstance(answer, CheckedGrammar)
        return answer

    def kill(self) -> None:
        """End it, whatever it does; a thread that asks it is told so, and closes it."""
        self._process.kill()

    def close(self) -> None:
        """End it and give back what it held; no thread asks it any more."""
        self._process.kill()
        self._process.join()
        self._connection.close()
        self._is_closed = True


def _too_large(spec: GrammarSpec, words: str) -> ApiError:
    return bad_request(spec.param, f"{spec.param} takes {words}", "grammar_too_large")


# -- in the process ---------------------------------------------------------------------------


def _serve(connection: Connection) -> None:
    """Check what comes, until the parent is gone."""
    follow_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    check = GrammarCheck(msgspec.msgpack.decode(connection.recv_bytes(), type=TokenTable))
    connection.send_bytes(b"ready")
    while True:
        try:
            spec = GrammarSpec.unpacked(connection.recv_bytes())
        except EOFError:
            return
        connection.send(_answer(check, spec))


def _answer(check: GrammarCheck, spec: GrammarSpec) -> CheckedGrammar | ApiError:
    try:
        return check.check(spec)
    except ApiError as error:
        return ApiError(error.status, error.message, param=error.param, code=error.code)
