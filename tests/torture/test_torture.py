"""`penstock torture` finds nothing on a sound disk, and finds a disk that loses or returns data."""

import json
import shutil
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.torture import Report, torture
from penstock.torture.child import Told
from penstock.torture.damage_judge import PromiseBroken, judge
from penstock.torture.damage_store import build, on_disk
from penstock.torture.damage_strokes import flip
from penstock.torture.kills import lose_newest_message
from penstock.torture.run import MARK
from tests.cli.command_line import CommandLine

LONG_S = 3600.0


@pytest.fixture
def command(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.setenv("COLUMNS", "100")
    return CommandLine(capsysbinary, monkeypatch)


def test_a_sound_disk_breaks_no_promise_and_the_directory_is_removed(
    command: CommandLine, tmp_path: Path
) -> None:
    place = tmp_path / "new" / "place"
    answer = command("torture", place, "--seconds", "1h", "--cycles", 12, "--seed", "a", "--json")
    assert answer.code == 0
    found = answer.json
    assert (found["cycles"], found["strokes"], found["findings"]) == (12, 120, [])
    assert found["sync_modes"] == ["always", "interval", "batch", "never"]
    assert found["control"] is True
    assert found["messages"] > 100
    assert found["reads"] > 0
    assert not place.exists()


def test_the_report_says_what_is_promised_and_what_cannot_be_tested(
    command: CommandLine, tmp_path: Path
) -> None:
    answer = command("torture", tmp_path, "--seconds", "1h", "--cycles", 2, "--seed", "b")
    assert answer.code == 0
    for words in ("kill -9", "0 lost, 0 came back", "a power cut", "No promise was broken"):
        assert words in answer.text
    assert list(tmp_path.iterdir()) == []  # it existed, so it stays


def test_a_disk_that_loses_an_acknowledged_message_is_found(tmp_path: Path) -> None:
    def lose(place: Path, told: Told) -> None:
        if told.published:
            lose_newest_message(place, told)

    report = torture(str(tmp_path), seconds=LONG_S, cycles=10, seed="c", after_kill=lose)
    assert report.count("lost") > 0
    assert not report.is_sound
    assert report.kept == str(tmp_path)
    assert any(tmp_path.glob("queue-*"))  # evidence
    again = torture(str(tmp_path), seconds=LONG_S, cycles=1, seed="c")  # its own directory
    assert again.is_sound


def test_an_ack_that_is_forgotten_is_found(tmp_path: Path) -> None:
    """The events of a queue go back to what they were after an earlier kill."""
    kept = tmp_path / "kept"
    acked: list[int] = []

    def forget(place: Path, told: Told) -> None:
        if not kept.exists() and told.answers > 20:
            shutil.copytree(place, kept)
            acked.append(len(told.acked))
        elif kept.exists() and len(told.acked) > acked[0]:
            for name in ("events", "snapshots"):
                shutil.rmtree(place / name, ignore_errors=True)
                if (kept / name).exists():
                    shutil.copytree(kept / name, place / name)

    report = torture(str(tmp_path / "t"), seconds=LONG_S, cycles=5, seed="d", after_kill=forget)
    assert report.count("came back") > 0


def test_a_failure_is_printed_with_exit_code_1(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Report(cycles=1, control=False, kept="there")
    monkeypatch.setattr("penstock.cli.torture.run_torture", lambda *_, **__: broken)
    answer = command("torture", tmp_path)
    assert answer.code == 1
    assert "FAILED" in answer.text
    assert "The files are kept in there" in answer.text


def test_a_judge_that_expects_other_content_finds_it(tmp_path: Path) -> None:
    """The control of the damage ring, on real files."""
    truth = build()
    case = flip(truth, truth.last_segments["events"], 800)
    judge(truth, case, on_disk(tmp_path))
    seq = min(truth.entries["messages"])
    truth.entries["messages"][seq] = (seq, b"another content")
    with pytest.raises(PromiseBroken, match=f"wrong seq {seq}"):
        judge(truth, case, on_disk(tmp_path))


def test_a_directory_that_is_not_its_own_is_refused_and_unchanged(
    command: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("precious")
    answer = command("torture", tmp_path, "--cycles", 1)
    assert answer.code == 2
    assert "is not empty, and was not made by" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(InvalidInput, match="is not a directory"):
        torture(str(tmp_path / "mine"), seconds=1)


def test_ctrl_c_reports_what_was_done(tmp_path: Path) -> None:
    def interrupt(report: Report) -> None:
        if report.cycles == 2:
            raise KeyboardInterrupt

    report = torture(str(tmp_path), seconds=LONG_S, seed="e", on_progress=interrupt)
    assert (report.cycles, report.is_sound) == (2, True)
    assert not (tmp_path / MARK).exists()


def test_the_document_can_be_read_by_a_program(command: CommandLine, tmp_path: Path) -> None:
    answer = command("torture", tmp_path, "--cycles", 1, "--json")
    assert json.loads(answer.out)["sound"] is True
