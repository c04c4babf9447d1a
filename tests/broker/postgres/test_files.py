"""Files in a database: fenced, written once whatever happens to the connection, fetched again."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.broker.postgres.content import Content
from penstock.broker.postgres.database import Database
from penstock.broker.postgres.files import PostgresFiles
from penstock.broker.postgres.journal import MAX_CHUNK_BYTES, WRITE, values_of
from penstock.broker.postgres.schema import migrate
from penstock.ledger.files import OsFiles
from tests.harness.cutting_proxy import CuttingProxy
from tests.harness.postgres_server import PostgresServer, new_queue

Opened = Callable[..., Database]


@pytest.fixture
def opened(postgres_server: PostgresServer, new_schema: Callable[[], str]) -> Iterator[Opened]:
    """Return a function that opens the same schema, each time as another program does."""
    schema, databases = new_schema(), list[Database]()

    def open_(port: int = postgres_server.port, **options: Any) -> Database:
        url = f"postgresql://penstock:secret@127.0.0.1:{port}/postgres"
        databases.append(Database(url, schema=schema, **options))
        migrate(databases[-1])
        return databases[-1]

    yield open_
    for database in databases:
        database.close()


class Place:
    """The files of a queue as one broker has them, with a cache of its own."""

    def __init__(self, database: Database, queue: int, token: int, cache: Path) -> None:
        cache.mkdir()
        self.path = str(cache)
        self.lost = 0
        self.files = PostgresFiles(database, queue, token, self.path, on_lost=self._on_lost)

    def _on_lost(self) -> None:
        self.lost += 1

    def write(self, name: str, data: bytes, offset: int = 0) -> None:
        path = self.files.join(self.path, name)
        fd = self.files.open(path, "write" if self.files.exists(path) else "create")
        try:
            assert self.files.pwrite(fd, data, offset) == len(data)
            self.files.fdatasync(fd)
        finally:
            self.files.close(fd)

    def read(self, name: str) -> bytes:
        fd = self.files.open(self.files.join(self.path, name), "read")
        try:
            return self.files.pread(fd, self.files.size(fd), 0)
        finally:
            self.files.close(fd)


def take_over(database: Database, queue: int, token: int) -> None:
    update = "update queue set token = %s where id = %s"
    database.transact(lambda session: session.execute(update, (token, queue)))


def number_of(database: Database, query: str, *values: object) -> int:
    found: int = database.read(lambda session: session.one(query, values))[0]
    return found


def test_what_was_synced_is_there_for_the_next_owner(opened: Opened, tmp_path: Path) -> None:
    database = opened()
    queue = new_queue(database)
    first = Place(database, queue, 1, tmp_path / "first")
    first.write("log", b"header" + bytes(100_000))
    first.write("log", b"entries", 6)
    first.write("log", b"more", 13)
    first.write("large", b"x" * (2 * MAX_CHUNK_BYTES + 5))
    files = first.files
    files.rename(files.join(first.path, "large"), files.join(first.path, "renamed"))
    first.write("gone", b"temporary")
    files.unlink(files.join(first.path, "gone"))
    files.sync_directory(first.path)
    take_over(database, queue, 2)
    second = Place(database, queue, 2, tmp_path / "second")
    assert second.files.names(second.path) == ["log", "renamed"]
    assert second.read("log") == b"headerentriesmore" + bytes(100_000 - 11)
    assert second.read("renamed") == b"x" * (2 * MAX_CHUNK_BYTES + 5)
    sent = (
        "select coalesce(sum(length(data)), 0)::bigint from chunk c join node n on n.queue = "
        "c.queue and n.id = c.node where c.queue = %s and n.name = 'log'"
    )
    assert number_of(database, sent, queue) == 17  # the zeros are not sent


def test_what_was_not_synced_is_not_there(opened: Opened, tmp_path: Path) -> None:
    database = opened()
    queue = new_queue(database)
    first = Place(database, queue, 1, tmp_path / "first")
    first.write("log", b"synced")
    path = first.files.join(first.path, "log")
    fd = first.files.open(path, "write")
    first.files.pwrite(fd, b"lost", 6)
    first.files.close(fd)
    second = Place(database, queue, 1, tmp_path / "second")
    assert second.read("log") == b"synced"


def test_an_owner_that_was_replaced_writes_nothing(opened: Opened, tmp_path: Path) -> None:
    database = opened()
    queue = new_queue(database)
    old = Place(database, queue, 1, tmp_path / "old")
    old.write("log", b"one")
    take_over(database, queue, 2)
    new = Place(database, queue, 2, tmp_path / "new")
    for attempt in ("content", "names", "again"):
        with pytest.raises(OSError, match="took the queue over") as refused:
            if attempt == "names":
                old.files.make_directory(old.files.join(old.path, "directory"))
                old.files.sync_directory(old.path)
            else:
                old.write("log", b"late", 3)
        assert refused.value.errno == errno.EIO
    assert old.lost == 1
    new.write("log", b"two", 3)
    assert Place(database, queue, 2, tmp_path / "third").read("log") == b"onetwo"


@pytest.mark.parametrize("kind", ["content", "names"])
def test_a_write_whose_answer_is_lost_is_written_once(
    postgres_server: PostgresServer, opened: Opened, tmp_path: Path, kind: str
) -> None:
    direct = opened()
    queue = new_queue(direct)
    proxy = CuttingProxy(postgres_server.port)
    try:
        place = Place(opened(proxy.port), queue, 1, tmp_path / "first")
        for at, byte in enumerate(b"one"):
            place.write("log", bytes([byte]), at)  # the statement is prepared now
        if kind == "names":
            place.files.make_directory(place.files.join(place.path, "directory"))
        proxy.swallow_answers(2)
        place.write("log", b"two", 3)
        assert proxy.cuts == 2
        place.write("log", b"three", 6)
    finally:
        proxy.close()
    again = Place(direct, queue, 1, tmp_path / "second")
    assert again.read("log") == b"onetwothree"
    assert number_of(direct, "select count(*) from chunk where queue = %s", queue) == 5
    assert number_of(direct, "select repeats from queue where id = %s", queue) >= 1


def test_an_unknown_commit_before_a_takeover_counts_as_done(
    postgres_server: PostgresServer, opened: Opened, tmp_path: Path
) -> None:
    direct = opened()
    queue = new_queue(direct)
    proxy = CuttingProxy(postgres_server.port)
    taken = threading.Event()

    try:
        database = opened(proxy.port)
        place = Place(database, queue, 1, tmp_path / "first")
        for at, byte in enumerate(b"one"):
            place.write("log", bytes([byte]), at)  # the statement is prepared now

        def watch() -> None:
            count = "select count(*) from chunk where queue = %s"
            while number_of(direct, count, queue) < 4:
                pass
            take_over(direct, queue, 2)
            taken.set()

        watching = threading.Thread(target=watch)
        watching.start()
        proxy.swallow_answers(1)
        # The first attempt commits, its answer is lost; repetitions wait for the takeover's lock.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "repeat", _after(taken, database.repeat))
            place.write("log", b"two", 3)
        watching.join(10)
    finally:
        proxy.close()
    assert Place(direct, queue, 2, tmp_path / "second").read("log") == b"onetwo"


def test_a_sync_after_a_takeover_fails_if_any_commit_under_way_is_missing(
    opened: Opened, tmp_path: Path
) -> None:
    """The next owner cuts the log off at the hole: the later commit does not count either."""
    database = opened()
    queue = new_queue(database)
    place = Place(database, queue, 1, tmp_path / "first")
    place.write("log", b"one")
    journal, path = place.files.journal, place.files.join(place.path, "log")
    fd = place.files.open(path, "write")
    commits = []
    for at, data in ((3, b"two"), (6, b"three")):
        place.files.pwrite(fd, data, at)
        commits.append(journal.begin_commit(journal.server))
    first, second = commits
    assert first is not None
    assert second is not None
    with database.session() as session:
        values, rows = values_of([second])
        assert session.insert(WRITE, values) == rows
    take_over(database, queue, 2)
    with pytest.raises(OSError, match="took the queue over"):
        place.files.fdatasync(fd)
    assert place.lost == 1


def test_a_sync_after_a_takeover_succeeds_if_all_commits_under_way_are_there(
    opened: Opened, tmp_path: Path
) -> None:
    database = opened()
    queue = new_queue(database)
    place = Place(database, queue, 1, tmp_path / "first")
    place.write("log", b"one")
    journal, path = place.files.journal, place.files.join(place.path, "log")
    fd = place.files.open(path, "write")
    place.files.pwrite(fd, b"two", 3)
    commit = journal.begin_commit(journal.server)
    assert commit is not None
    with database.session() as session:
        values, rows = values_of([commit])
        assert session.insert(WRITE, values) == rows
    take_over(database, queue, 2)
    place.files.fdatasync(fd)
    assert Place(database, queue, 2, tmp_path / "second").read("log") == b"onetwo"


@pytest.mark.parametrize("moment", ["commit", "fetch", "seal"])
def test_a_removed_file_is_not_missed_in_another_database(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A file that is removed while it is committed, fetched or sealed is not expected later."""
    database = opened()
    queue = new_queue(database)
    place = Place(database, queue, 1, tmp_path / "first")
    place.write("kept", b"kept")
    place.files.seal_complete()
    for at in range(100):
        place.write("removed", b"x", at)
    if moment == "fetch":
        place = Place(database, queue, 1, tmp_path / "second")
    files, journal = place.files, place.files.journal
    path = files.join(place.path, "removed")

    def remove() -> None:
        files.unlink(path)
        if moment != "fetch":  # it holds the lock that a sync needs
            journal.sync()
        removed.append(path)

    removed = list[str]()
    if moment == "commit":
        fd = files.open(path, "write")
        files.pwrite(fd, b"under way", 100)
        commit = journal.begin_commit(journal.server)
        assert commit is not None
        remove()
        journal.end_commit(commit)
        files.close(fd)
    elif moment == "fetch":
        chunks = Content.chunks

        def removed_meanwhile(content: Content, node: int) -> Iterator[Any]:
            yield from chunks(content, node)
            if not removed:
                remove()

        monkeypatch.setattr(Content, "chunks", removed_meanwhile)
        files.prefetch(path)
    else:
        repeat = database.repeat

        def removed_afterwards(work: Any) -> Any:
            result = repeat(work)
            if not removed:
                removed.append(path)
                remove()
            return result

        monkeypatch.setattr(database, "repeat", removed_afterwards)
        files.seal_complete()
    assert removed
    assert len(journal.durable) == (0 if moment == "fetch" else 1), "only the file that is kept"
    journal.server = "another server, which has all that is kept"
    place.write("kept", b"written", 4)
    assert place.read("kept") == b"keptwritten"


def test_a_copy_that_is_missing_does_not_keep_others_from_being_sealed(
    opened: Opened, tmp_path: Path
) -> None:
    """As after its queue was closed, or the file was removed, while it waited for its turn."""
    database = opened()
    place = Place(database, new_queue(database), 1, tmp_path / "first")
    for name in ("one", "two", "three"):
        place.write(name, name.encode())
    (tmp_path / "first" / "two").unlink()
    place.files.seal_complete()
    sealed = "select count(*) from node where size is not null"
    assert number_of(database, sealed) == 2


def _after(event: threading.Event, repeat: Any) -> Any:
    """Return a `repeat` whose second call of the work waits for an event."""

    def changed(work: Any, *arguments: Any) -> Any:
        def waiting(session: Any, is_repeat: bool) -> Any:
            if is_repeat:
                assert event.wait(10)
            return work(session, is_repeat)

        return repeat(waiting, *arguments)

    return changed


def test_a_cancelled_wait_for_the_standby_is_waited_for_again(tmp_path: Path) -> None:
    server = PostgresServer().create().start()
    try:
        database = Database(server.url)
        migrate(database)
        place = Place(database, new_queue(database), 1, tmp_path / "cache")
        with psycopg.connect(server.url, autocommit=True) as admin:
            over, answered = threading.Event(), list[int]()

            def write() -> None:
                for at in range(1_000_000):  # processes notice the setting one after another
                    if over.is_set():
                        return
                    place.write("log", b"x", at)
                    answered.append(at)

            writing = threading.Thread(target=write)
            writing.start()
            _set_standbys(admin, "absent")
            first = _waiting_backend(admin, set())
            before = len(answered)
            admin.execute("select pg_cancel_backend(%s)", (first,))
            _waiting_backend(admin, {first})  # it commits again, and waits again
            assert len(answered) == before
            over.set()
            _set_standbys(admin, "")
            writing.join(30)
            assert len(answered) == before + 1
        database.close()
    finally:
        server.remove()


def _set_standbys(admin: "psycopg.Connection[Any]", names: str) -> None:
    admin.execute("set synchronous_commit = local")
    admin.execute(f"alter system set synchronous_standby_names = '{names}'")
    admin.execute("select pg_reload_conf()")
    while admin.execute("show synchronous_standby_names").fetchone() != (names,):
        pass


def _waiting_backend(admin: "psycopg.Connection[Any]", known: set[int]) -> int:
    """Return a process that waits for a standby, and is not known yet."""
    query = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
    while True:
        for (pid,) in admin.execute(query):
            if pid not in known:
                return int(pid)


def test_a_database_that_lost_what_it_confirmed_is_not_written_to(tmp_path: Path) -> None:
    server = PostgresServer().create().start()
    try:
        database = Database(server.url)
        migrate(database)
        queue = new_queue(database)
        place = Place(database, queue, 1, tmp_path / "first")
        place.write("log", b"one")
        place.write("log", b"two", 3)
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("delete from penstock.chunk where start = 3")  # as a failover may
        server.stop()
        server.start()
        with pytest.raises(OSError, match="lost what it had confirmed"):
            place.write("log", b"three", 6)
        again = Place(database, queue, 1, tmp_path / "second")
        assert again.read("log") == b"one"
        database.close()
    finally:
        server.remove()


# -- sealed files ----------------------------------------------------------------------------------


def rows_of(database: Database, queue: int) -> int:
    return number_of(database, "select count(*) from chunk where queue = %s", queue)


def test_a_sealed_file_is_opened_without_fetching_it(opened: Opened, tmp_path: Path) -> None:
    database = opened()
    queue = new_queue(database)
    first = Place(database, queue, 1, tmp_path / "first")
    content = bytes(range(256)) * 100
    for start in range(0, len(content), 256):
        first.write("log", content[start : start + 256], start)
    assert rows_of(database, queue) == 100
    first.files.seal_complete()
    assert rows_of(database, queue) == 4, "many small rows are rewritten"
    second = Place(database, queue, 1, tmp_path / "second")
    files = second.files
    fd = files.open(files.join(second.path, "log"), "read")
    assert files.size(fd) == len(content)
    assert files.pread(fd, 64, 0) == content[:64]
    assert files.fetched_bytes == 0
    assert files.pread(fd, 1000, 50) == content[50:1050]
    assert bytes(files.map(fd, len(content), writable=False).view) == content
    files.close(fd)
    assert files.fetched_bytes == len(content)


def test_a_sealed_file_that_is_written_again_is_not_sealed(opened: Opened, tmp_path: Path) -> None:
    database = opened()
    queue = new_queue(database)
    place = Place(database, queue, 1, tmp_path / "first")
    place.write("log", b"one")
    place.files.seal_complete()
    place.write("log", b"two", 3)
    again = Place(database, queue, 1, tmp_path / "second")
    assert again.read("log") == b"onetwo"
    again.files.seal_complete()  # nothing was written: nothing is sealed
    assert number_of(database, "select count(*) from node where size is not null") == 0
    place.files.seal_complete()
    assert number_of(database, "select count(*) from node where size = 6") == 1


def test_a_file_that_is_opened_while_it_is_sealed_stays_unsealed(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = opened()
    queue = new_queue(database)
    place = Place(database, queue, 1, tmp_path / "first")
    place.write("log", b"one")
    seal = Content.seal

    def written_meanwhile(*arguments: Any) -> bool:
        place.write("log", b"two", 3)  # its unsealing is committed before the seal
        return seal(*arguments)

    monkeypatch.setattr(Content, "seal", written_meanwhile)
    place.files.seal_complete()
    place.write("log", b"three", 6)
    assert Place(database, queue, 1, tmp_path / "second").read("log") == b"onetwothree"


@pytest.mark.parametrize("pieces", [1, 100])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_written_while_a_file_is_sealed_stays_if_it_is_closed_again(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int, moment: str
) -> None:
    """As the last segment of a queue that was taken over: it is filled, and the next one begins,
    while a thread seals it. A seal lasts long if the database is restarted meanwhile."""
    database = opened()
    queue = new_queue(database)
    place = Place(database, queue, 1, tmp_path / "first")
    for at in range(pieces):
        place.write("log", b"x", at)
    seal = Content.seal

    def written_meanwhile(*arguments: Any) -> bool:
        if moment == "before":  # as in an attempt that failed, after which another follows
            place.write("log", b"answered", pieces)
        is_sealed = seal(*arguments)
        if moment == "after":  # it waits for the lock of the seal, which is rolled back
            path = place.files.join(place.path, "log")
            fd = place.files.open(path, "write")
            place.files.pwrite(fd, b"answered", pieces)
            place.files.close(fd)
        return is_sealed

    with monkeypatch.context() as patch:
        patch.setattr(Content, "seal", written_meanwhile)
        place.files.seal_complete()
    place.files.journal.sync()
    content = b"x" * pieces + b"answered"
    assert Place(database, queue, 1, tmp_path / "second").read("log") == content
    place.files.seal_complete()  # it is tried again
    assert number_of(database, "select size from node") == len(content)
    assert Place(database, queue, 1, tmp_path / "third").read("log") == content
    assert place.read("log") == content


def test_a_file_that_is_renamed_while_it_is_sealed_keeps_its_content(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rewritten segment, whose temporary name the next one gets."""
    database = opened()
    queue = new_queue(database)
    place = Place(database, queue, 1, tmp_path / "first")
    for at in range(100):
        place.write("temporary", b"x", at)
    open_, threads = OsFiles.open, list[threading.Thread]()

    def rename() -> None:
        files = place.files
        files.rename(files.join(place.path, "temporary"), files.join(place.path, "segment"))
        place.write("temporary", b"of another segment")

    def renamed_meanwhile(files: OsFiles, path: str, mode: Any) -> int:
        if mode == "read" and path.endswith("temporary") and not threads:
            threads.append(threading.Thread(target=rename))
            threads[0].start()
            threads[0].join(0.2)  # it ends, or waits until the file is open
        return open_(files, path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "open", renamed_meanwhile)
        place.files.seal_complete()
    threads[0].join()
    assert Place(database, queue, 1, tmp_path / "second").read("segment") == b"x" * 100


def test_a_dropped_copy_is_fetched_again_and_open_readers_keep_theirs(
    opened: Opened, tmp_path: Path
) -> None:
    database = opened()
    place = Place(database, new_queue(database), 1, tmp_path / "first")
    content = bytes(range(256)) * 100
    place.write("log", content)
    files = place.files
    assert files.cached() == [], "a file that is not sealed is not dropped"
    files.seal_complete()
    reader = files.open(files.join(place.path, "log"), "read")
    (((_, size, node)),) = files.cached()
    assert size == len(content)
    files.evict(node)
    assert files.cached() == []
    assert files.pread(reader, len(content), 0) == content
    files.close(reader)
    assert files.fetched_bytes == 0
    assert place.read("log") == content
    assert files.fetched_bytes == len(content)
    files.unlink(files.join(place.path, "log"))
    assert files.cached() == []


def test_a_reader_of_a_removed_file_reads_on(opened: Opened, tmp_path: Path) -> None:
    database = opened()
    queue = new_queue(database)
    place = Place(database, queue, 1, tmp_path / "first")
    content = bytes(range(256)) * 100
    place.write("log", content)
    place.files.seal_complete()
    second = Place(database, queue, 1, tmp_path / "second")
    path = second.files.join(second.path, "log")
    reader = second.files.open(path, "read")
    second.files.unlink(path)
    second.files.sync_directory(second.path)
    assert second.files.pread(reader, len(content), 0) == content
    second.files.close(reader)
