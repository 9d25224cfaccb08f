"""The file of stored responses: what is kept, for whom, for how long, and what attacks find."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from server.config import ResponseStoreConfig
from server.response_store.database import SILENT_S, ResponseDatabase, check_store
from server.response_store.records import (
    BrokenChainError,
    StoreError,
    TakenIdError,
    TooLargeError,
)
from tests.server.response_store.stored import OTHER, OWNER, message, new, put, run

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "responses.db")


@pytest.fixture
def database(path: str) -> Iterator[ResponseDatabase]:
    opened = ResponseDatabase(ResponseStoreConfig(path))
    yield opened
    opened.close()


def ids_in(database: ResponseDatabase, *ids: str) -> list[str]:
    return [each for each in ids if database.get(OWNER, each) is not None]


class TestConversations:
    def test_a_response_is_there_while_it_runs_and_after(self, database: ResponseDatabase) -> None:
        key = database.begin(new())
        found = database.get(OWNER, "resp_1")
        assert found is not None
        assert (found.key, found.status) == (key, "in_progress")
        output = [message("m", "Hi")]
        reply = {"id": "resp_1", "status": "completed", "output": output}
        database.finish(key, "completed", reply, output, run())
        found = database.get(OWNER, "resp_1")
        assert found is not None
        assert (found.status, orjson.loads(found.raw)) == ("completed", reply)

    def test_a_conversation_is_all_items_in_order(self, database: ResponseDatabase) -> None:
        first = put(database, "resp_1", text="a")
        second = put(database, "resp_2", [first], text="b")
        found = database.conversation(OWNER, "resp_2", MIB)
        assert found is not None
        assert [item["text"] for item in found.items] == ["a", "re: a", "b", "re: b"]
        assert found.chain == [first, second]
        assert [each.token_ids.tolist() for each in found.runs] == [[1, 2]] * 2
        inputs = database.input_items(OWNER, "resp_2", MIB)
        assert inputs is not None
        assert [item["text"] for item in inputs] == ["a", "re: a", "b"]

    def test_two_may_continue_one(self, database: ResponseDatabase) -> None:
        first = put(database, "resp_1", text="a")
        for name in ("b", "c"):
            put(database, f"resp_{name}", [first], text=name)
            found = database.conversation(OWNER, f"resp_{name}", MIB)
            assert found is not None
            assert [item["text"] for item in found.items] == ["a", "re: a", name, f"re: {name}"]

    def test_more_bytes_than_may_be_read_are_not_read(self, database: ResponseDatabase) -> None:
        first = put(database, "resp_1", text="a" * 1000)
        put(database, "resp_2", [first], text="b" * 1000)
        whole = [orjson.dumps(each) for each in database.input_items(OWNER, "resp_2", MIB) or ()]
        num_bytes = sum(map(len, whole))
        assert database.input_items(OWNER, "resp_2", num_bytes) is not None
        with pytest.raises(TooLargeError) as error:
            database.input_items(OWNER, "resp_2", num_bytes - 1)
        assert error.value.num_bytes == num_bytes
        with pytest.raises(TooLargeError) as error:
            database.conversation(OWNER, "resp_2", num_bytes)  # with its output there is more
        assert error.value.num_bytes > num_bytes
        names = ["msg_of_resp_1"] * 3
        assert database.items(OWNER, names, 3 * len(whole[0])) == [orjson.loads(whole[0])] * 3
        with pytest.raises(TooLargeError):
            database.items(OWNER, names, 3 * len(whole[0]) - 1)

    def test_the_latest_item_of_an_id(self, database: ResponseDatabase) -> None:
        for name in ("1", "2"):
            key = database.begin(new(f"resp_{name}"))
            database.finish(key, "completed", {}, [message("m", name)], None)
        [found] = database.items(OWNER, ["m"], MIB)
        assert found is not None
        assert found["text"] == "2"
        assert database.items(OWNER, ["other"], MIB) == [None]

    def test_what_continued_a_deleted_response_cannot_go_on(
        self, database: ResponseDatabase
    ) -> None:
        first = put(database, "resp_1", text="a")
        put(database, "resp_2", [first])
        assert database.delete(OWNER, "resp_1")
        assert not database.delete(OWNER, "resp_1")
        assert database.get(OWNER, "resp_1") is None
        assert database.items(OWNER, ["out_of_resp_1"], MIB) == [None]
        with pytest.raises(BrokenChainError):
            database.conversation(OWNER, "resp_2", MIB)
        assert ids_in(database, "resp_2") == ["resp_2"]

    def test_a_key_is_never_another_response_again(self, database: ResponseDatabase) -> None:
        """Else one that continued a deleted response would continue a stranger's."""
        first = put(database, "resp_1")
        put(database, "resp_2", [first])
        database.delete(OWNER, "resp_1")
        assert put(database, "resp_1", text="of a stranger") > first
        with pytest.raises(BrokenChainError):
            database.conversation(OWNER, "resp_2", MIB)

    def test_what_is_deleted_is_in_no_file(self, path: str, database: ResponseDatabase) -> None:
        """Nor in the log, while the file is open."""
        put(database, text="a secret word")

        def files() -> bytes:
            return b"".join(each.read_bytes() for each in Path(path).parent.iterdir())

        assert b"a secret word" in files()
        database.delete(OWNER, "resp_1")
        assert b"a secret word" not in files()

    def test_ids_are_taken_once(self, database: ResponseDatabase) -> None:
        put(database)
        with pytest.raises(TakenIdError):
            database.begin(new())
        put(database, owner=OTHER)

    def test_one_that_was_deleted_while_it_ran(self, database: ResponseDatabase) -> None:
        key = database.begin(new())
        database.delete(OWNER, "resp_1")
        database.finish(key, "completed", {}, [message("m", "x")], None)
        assert database.get(OWNER, "resp_1") is None
        assert database.items(OWNER, ["m"], MIB) == [None]


class TestOwners:
    def test_nothing_of_another_key_is_there(self, database: ResponseDatabase) -> None:
        put(database)
        assert database.get(OTHER, "resp_1") is None
        assert database.conversation(OTHER, "resp_1", MIB) is None
        assert database.input_items(OTHER, "resp_1", MIB) is None
        assert database.items(OTHER, ["out_of_resp_1"], MIB) == [None]
        assert not database.delete(OTHER, "resp_1")
        assert ids_in(database, "resp_1") == ["resp_1"]


class TestBounds:
    def test_the_number(self, path: str) -> None:
        database = ResponseDatabase(ResponseStoreConfig(path, max_responses=20))
        names = [f"resp_{i}" for i in range(40)]
        for name in names:
            put(database, name)
        left = ids_in(database, *names)
        assert 4 <= len(left) <= 20
        assert left == names[-len(left) :]
        database.close()

    def test_a_conversation_that_goes_on_keeps_its_beginning(self, path: str) -> None:
        database = ResponseDatabase(ResponseStoreConfig(path, max_responses=40))
        chain = [put(database, "resp_first")]
        for i in range(60):
            put(database, f"resp_other_{i}")
            if i % 8 == 0:
                chain.append(put(database, f"resp_{i}", chain))
        found = database.conversation(OWNER, "resp_56", MIB)
        assert found is not None
        assert len(found.items) == 2 * len(chain)
        database.close()

    def test_the_bytes(self, path: str) -> None:
        """The file grows no further, whatever is put into it."""
        database = ResponseDatabase(ResponseStoreConfig(path, max_bytes=4 * MIB))
        names = [f"resp_{i}" for i in range(100)]
        for name in names:
            put(database, name, text="x" * (MIB // 8))
        assert os.path.getsize(path) < 6 * MIB
        assert ids_in(database, *names)[-1] == names[-1]
        database.close()

    def test_a_huge_response_is_refused_alone(self, path: str) -> None:
        database = ResponseDatabase(ResponseStoreConfig(path, max_bytes=4 * MIB))
        put(database)
        with pytest.raises(StoreError, match="over a quarter"):
            put(database, "resp_huge", text="x" * 2 * MIB)
        assert ids_in(database, "resp_1") == ["resp_1"]
        database.close()

    def test_the_age(self, path: str) -> None:
        database = ResponseDatabase(ResponseStoreConfig(path, max_age_s=0.5))
        put(database)
        assert ids_in(database, "resp_1")
        time.sleep(0.6)
        assert database.get(OWNER, "resp_1") is None
        assert database.conversation(OWNER, "resp_1", MIB) is None
        put(database, "resp_2")  # which removes it
        database.close()
        [[count]] = sqlite3.connect(path).execute("SELECT COUNT(*) FROM responses")
        assert count == 1

    def test_one_that_runs_stays(self, path: str) -> None:
        database = ResponseDatabase(ResponseStoreConfig(path, max_responses=5))
        key = database.begin(new("resp_running"))
        for i in range(20):
            put(database, f"resp_{i}")
        database.touch([key])
        assert ids_in(database, "resp_running")
        database.close()


class TestSeveralFronts:
    def test_each_sees_what_others_wrote(self, path: str) -> None:
        first, second = (ResponseDatabase(ResponseStoreConfig(path)) for _ in range(2))
        key = first.begin(new())
        second.cancel(key)
        assert first.to_cancel() == [key]
        first.finish(key, "cancelled", {"status": "cancelled"}, [], None)
        found = second.get(OWNER, "resp_1")
        assert found is not None
        assert found.status == "cancelled"
        assert first.to_cancel() == []
        first.close()
        second.close()

    def test_writers_at_once(self, path: str) -> None:
        def write(front: int) -> None:
            database = ResponseDatabase(ResponseStoreConfig(path))
            chain: list[int] = []
            for i in range(25):
                chain.append(put(database, f"resp_{front}_{i}", chain))
            database.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        database = ResponseDatabase(ResponseStoreConfig(path))
        for front in range(4):
            found = database.conversation(OWNER, f"resp_{front}_24", MIB)
            assert found is not None
            assert len(found.items) == 50
        database.close()

    def test_a_front_that_is_killed_leaves_a_whole_file(self, path: str) -> None:
        script = (
            "import sys\n"
            "from server.config import ResponseStoreConfig\n"
            "from server.response_store.database import ResponseDatabase\n"
            "from tests.server.response_store.stored import new, put\n"
            "database = ResponseDatabase(ResponseStoreConfig(sys.argv[1]))\n"
            "database.begin(new('resp_running'))\n"
            "print('begun', flush=True)\n"
            "for i in range(10**6): put(database, f'resp_{i}', text='x' * 9999)\n"
        )
        command = [sys.executable, "-c", script, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.2)
            process.send_signal(signal.SIGKILL)
        database = ResponseDatabase(ResponseStoreConfig(path))
        [[verdict]] = sqlite3.connect(path).execute("PRAGMA integrity_check")
        assert verdict == "ok"
        connection = sqlite3.connect(path)
        with connection:
            connection.execute("UPDATE responses SET used = used - ?", (SILENT_S + 1,))
        found = database.get(OWNER, "resp_running")
        assert found is not None
        assert found.status == "failed"
        assert orjson.loads(found.raw)["error"]["code"] == "server_error"
        continued = database.conversation(OWNER, "resp_running", MIB)
        assert continued is not None
        assert continued.status == "failed"
        put(database, "resp_after")
        database.close()


class TestFiles:
    def test_it_is_its_owners_alone(self, path: str) -> None:
        check_store(ResponseStoreConfig(path))
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    def test_it_outlives_the_process(self, path: str) -> None:
        database = ResponseDatabase(ResponseStoreConfig(path))
        put(database)
        database.close()
        database = ResponseDatabase(ResponseStoreConfig(path))
        assert ids_in(database, "resp_1")
        database.close()

    def test_one_without_a_path_is_nowhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        database = ResponseDatabase(ResponseStoreConfig(""))
        put(database)
        assert ids_in(database, "resp_1")
        assert not list(tmp_path.iterdir())
        database.close()

    def test_a_file_of_another_kind(self, path: str) -> None:
        Path(path).write_bytes(b"a text that is no database " * 100)
        with pytest.raises(StoreError, match="not a database"):
            check_store(ResponseStoreConfig(path))
        assert Path(path).read_bytes().startswith(b"a text")

    def test_a_database_of_another_program(self, path: str) -> None:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE theirs (a)")
        connection.close()
        with pytest.raises(StoreError, match="another program"):
            check_store(ResponseStoreConfig(path))

    def test_a_newer_version(self, path: str) -> None:
        check_store(ResponseStoreConfig(path))
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(StoreError, match="version 99"):
            check_store(ResponseStoreConfig(path))

    def test_a_folder_that_is_not_there(self, path: str) -> None:
        with pytest.raises(StoreError, match="folder does not exist"):
            check_store(ResponseStoreConfig(f"{path}/no/such"))

    def test_a_damaged_file(self, path: str) -> None:
        database = ResponseDatabase(ResponseStoreConfig(path))
        for i in range(50):
            put(database, f"resp_{i}", text="x" * 3000)
        database.close()
        with open(path, "r+b") as file:
            file.seek(8192)
            file.write(os.urandom(os.path.getsize(path) - 8192))

        def use() -> None:
            database = ResponseDatabase(ResponseStoreConfig(path))
            for i in range(50):
                database.get(OWNER, f"resp_{i}")
                put(database, f"resp_new_{i}")

        with pytest.raises(StoreError):
            use()

    def test_a_full_disk(self, path: str) -> None:
        """What does not fit is an error; what was there stays, and there is room again later."""
        database = ResponseDatabase(ResponseStoreConfig(path))
        put(database)
        database._connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(StoreError, match="full"):
            put(database, "resp_2", text="x" * 200_000)
        assert ids_in(database, "resp_1", "resp_2") == ["resp_1"]
        put(database, "resp_3")
        assert ids_in(database, "resp_3") == ["resp_3"]
        database.close()

    def test_a_file_that_may_only_be_read(self, path: str) -> None:
        database = ResponseDatabase(ResponseStoreConfig(path))
        put(database)
        database._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match="readonly"):
            put(database, "resp_2")
        assert ids_in(database, "resp_1") == ["resp_1"]
        database.close()
