"""`penstock import`: the result is printed, errors are one sentence and leave nothing."""

from pathlib import Path

from tests.cli.command_line import CommandLine
from tests.importing.ledgerq_files import entry, write_metadata, write_segment

START_NS = 1_760_000_000_000_000_000


def test_a_directory_of_ledgerq_becomes_a_queue(command: CommandLine, tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    write_segment(source, 0, [entry(n, b"m%d" % n, START_NS + n) for n in range(1, 6)], b"torn")
    write_metadata(source, 6, 3)
    done = command("import", "ledgerq", source, target)
    assert done.code == 0, done.err
    assert "3 waiting, 2 done and 0 dead messages" in done.text
    assert "the last 4 bytes are incomplete" in done.err
    assert command("stats", target, "--json").json["published"] == 5
    again = command("import", "ledgerq", source, target)
    assert (again.code, "exists" in again.err) == (2, True)
    other = command("import", "ledgerq", source, tmp_path / "other", "--json")
    assert (other.json["waiting"], other.json["done"], other.json["refused"]) == (3, 2, 0)


def test_a_missing_source_is_one_sentence(command: CommandLine, tmp_path: Path) -> None:
    for kind in ("ledgerq", "persist-queue", "huey", "beanstalkd"):
        refused = command("import", kind, tmp_path / "missing", tmp_path / "new")
        assert (refused.code, len(refused.err.strip().splitlines())) == (2, 1), refused.err
        assert not (tmp_path / "new").exists()
