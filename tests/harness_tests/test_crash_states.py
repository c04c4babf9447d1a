"""The crash-state builder finds known bugs, and does not find what is not there."""

import errno
from collections.abc import Iterator

import pytest

from tests.harness.crash_states import CrashState, crash_states, kills, points, power_losses
from tests.harness.faults import Fault, FaultyFiles
from tests.harness.journal import RecordedFiles
from tests.harness_tests.notebook import BUGS, DIRECTORY, FILE, Notebook


def live(files: RecordedFiles, bug: str, first: int) -> None:
    """A short life over a notebook, with its answers marked; what it found at first as well."""
    notebook = Notebook(files, bug)
    for value in notebook.values:
        files.mark(value)
    for value in range(first, first + 3):
        notebook.add(value, files.mark)
    notebook.rewrite()
    notebook.add(first + 3, files.mark)


def problem_of(state: CrashState, bug: str) -> str | None:
    """What the store has done wrong in a state."""
    files = state.files()
    notebook = Notebook(files, bug)
    found = list(notebook.values)
    missing = [value for value in state.marks if value not in found]
    if missing:
        return f"{state.name}: answered and lost {missing}"
    if found != sorted(set(found)):
        return f"{state.name}: out of order or twice {found}"
    notebook.add(1000, lambda _: None)
    again = Notebook(files, bug).values
    if again != [*found, 1000]:
        return f"{state.name}: {again} after adding 1000 to {found}"
    return None


def all_states(bug: str) -> Iterator[CrashState]:
    files = RecordedFiles()
    live(files, bug, first=1)
    for state in crash_states(files.journal, life="notebook"):
        yield state
        if state.name.endswith(("nothing kept", "kill")):
            # Go on after the crash, and crash again: in recovery, or later.
            second = state.recorded()
            live(second, bug, first=101)
            yield from crash_states(second.journal, life=f"{state.name} > again", cuts=1, tears=0)
    # A sync that fails, and after that a power cut.
    for nth in range(1, 8):
        recorded = RecordedFiles()
        fault = Fault(nth, errno.EIO, methods=frozenset({"fdatasync"}))
        faulty = FaultyFiles(recorded, fault)
        try:
            notebook = Notebook(faulty, bug)
            for value in range(1, 5):
                notebook.add(value, recorded.mark)
        except OSError:
            pass
        yield from crash_states(recorded.journal, life=f"sync {nth} fails")


def first_problem(bug: str) -> str | None:
    return next(filter(None, (problem_of(state, bug) for state in all_states(bug))), None)


def test_a_sound_store_passes_every_state() -> None:
    assert first_problem("") is None


@pytest.mark.parametrize("bug", BUGS)
def test_a_known_bug_is_found(bug: str) -> None:
    assert first_problem(bug) is not None


def test_the_same_life_gives_the_same_states_every_time() -> None:
    def run() -> list[tuple[str, object]]:
        files = RecordedFiles()
        live(files, "", first=1)
        states = crash_states(files.journal, life="notebook", seed=7)
        return [(state.name, state.files().image()) for state in states]

    first, second = run(), run()
    assert first == second
    names = [name for name, _ in first]
    assert len(set(names)) == len(names)


def test_process_death_keeps_everything_but_may_tear_the_last_write() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.pwrite(fd, b"first", 0)
    files.pwrite(fd, b"second", 5)
    last = list(points(files.journal))[-1]
    contents = {state.files().image().files[1] for state in kills(last, life="x", tears=100)}
    assert contents == {b"first" + b"second"[:end] for end in range(1, 7)}


def test_a_mapped_append_may_lack_its_length_when_the_process_dies() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.pwrite(fd, bytes(4096), 0)
    files.map(fd, 4096, writable=True).view[10:20] = b"LENGbodybo"
    files.mark("stored")
    *_, store, _ = points(files.journal)
    contents = {
        state.files().image().files[1][10:20] for state in kills(store, life="x", tears=100)
    }
    assert any(each.startswith(b"\0\0\0\0b") for each in contents)
    assert b"LENGbodybo" in contents


def test_power_loss_can_keep_any_subset_of_unsynced_writes() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.sync_directory("/")
    files.pwrite(fd, b"......", 0)
    files.fdatasync(fd)
    files.pwrite(fd, b"A", 1)
    files.pwrite(fd, b"B", 3)
    files.pwrite(fd, b"C", 5)
    last = list(points(files.journal))[-1]
    contents = {state.files().image().files[1] for state in power_losses(last, life="x", cuts=0)}
    assert len(contents) == 8
    assert {b"......", b".A.B.C", b".....C", b".A...."} < contents


def test_power_loss_can_keep_pages_of_different_age_and_another_size() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.sync_directory("/")
    for letter in (b"a", b"b", b"c", b"d"):
        files.pwrite(fd, letter * 8192, 0)
    files.pwrite(fd, b"e" * 4096, 8192)
    last = list(points(files.journal))[-1]
    contents = {state.files().image().files[1] for state in power_losses(last, life="x", cuts=300)}
    assert any(len(set(each[:4096:512])) > 1 for each in contents), "sectors of different age"
    assert any(len(each) == 8192 for each in contents)
    assert any(each[8192:] == bytes(4096) for each in contents), "the size without the content"


def test_power_loss_can_take_a_synced_file_whose_name_was_not_synced() -> None:
    files = RecordedFiles()
    files.make_directory(DIRECTORY)
    files.sync_directory("/")
    fd = files.open(FILE, "create")
    files.pwrite(fd, b"content", 0)
    files.fdatasync(fd)
    last = list(points(files.journal))[-1]
    exist = {state.files().exists(FILE) for state in power_losses(last, life="x")}
    assert exist == {True, False}


def test_power_loss_can_keep_a_rename_without_the_content() -> None:
    files = RecordedFiles()
    fd = files.open("/new", "create")
    files.pwrite(fd, b"content", 0)
    files.rename("/new", "/name")
    last = list(points(files.journal))[-1]
    images = [state.files().image() for state in power_losses(last, life="x")]
    assert any(image.directories[0] == {"name": 1} and image.files[1] == b"" for image in images)


def test_a_directory_sync_makes_its_names_certain_and_no_content() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.pwrite(fd, b"content", 0)
    files.sync_directory("/")
    files.mark("end")
    last = list(points(files.journal))[-1]
    images = [state.files().image() for state in power_losses(last, life="x")]
    assert all(image.directories[0] == {"a": 1} for image in images)
    assert {b"", b"content"} <= {image.files[1] for image in images}


def test_a_move_between_directories_is_certain_when_both_are_synced() -> None:
    files = RecordedFiles()
    for path in ("/one", "/two"):
        files.make_directory(path)
    files.close(files.open("/one/a", "create"))
    for path in ("/", "/one", "/two"):
        files.sync_directory(path)
    files.rename("/one/a", "/two/b")
    files.sync_directory("/two")
    files.mark("half")
    files.sync_directory("/one")
    files.mark("whole")
    *_, half, whole = points(files.journal)
    assert [len(half.disk.pending_steps()), len(whole.disk.pending_steps())] == [1, 0]
    for state in [*power_losses(half, life="x"), *power_losses(whole, life="x")]:
        found = state.files()
        assert found.exists("/one/a") != found.exists("/two/b")


def test_power_loss_after_process_death_takes_what_the_dead_never_synced() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.sync_directory("/")
    files.pwrite(fd, b"content", 0)
    (dead, *_) = kills(list(points(files.journal))[-1], life="x")
    second = dead.recorded()
    fd = second.open("/a", "read")
    assert second.pread(fd, 7, 0) == b"content", "the cache outlives the process"
    second.mark(b"content")
    contents = {
        state.files().image().files[1]
        for state in crash_states(second.journal, life="y")
        if state.cause == "power"
    }
    assert b"" in contents
