"""`make demo`: write to a queue, kill the writer, damage the files, and lose nothing."""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock import codec
from penstock.clock import SystemClock
from penstock.ledger import Cursor, Damage, Ledger, LedgerSettings, read_entry
from penstock.ledger.segment_header import segment_name

BATCH = 100
BATCHES = 1_000 if codec.IMPLEMENTATION == "compiled" else 20
ANSWERS_BEFORE_THE_KILL = 150
WRITER = "--write-until-killed"


def main() -> None:
    """Run the demonstration in a temporary directory."""
    logging.getLogger("penstock").addHandler(logging.NullHandler())  # printed by this program
    print("Penstock keeps a queue in a directory of files. It never loses what it has answered.\n")
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as place:
        _show_speed(Path(place, "fast"))
        queue = Path(place, "orders")
        _show_kill(queue)
        _show_damage(queue)
    print("Next: README.md for the map, `make test` for the proof, `make bench` for the figures.")


def _show_speed(path: Path) -> None:
    batch = [b"an order, as most of what lies in a queue is".ljust(100)] * BATCH
    with Ledger.open(str(path), LedgerSettings(sync="never")) as ledger:
        start = SystemClock.monotonic_ns()
        for _ in range(BATCHES):
            ledger.messages.append_batch(batch)
        written = _speed(BATCHES * BATCH, start)
        start = SystemClock.monotonic_ns()
        read = _speed(len(_read_all(ledger)), start)
    print(f"Speed   ({codec.IMPLEMENTATION} codec)")
    print(f"  wrote {written}, of 100 bytes each")
    print(f"  read  {read}, every checksum verified\n")


def _show_kill(path: Path) -> None:
    print("Crash")
    print("  a process writes orders, and answers for each once it is on the disk")
    writer = subprocess.Popen(
        [sys.executable, "-m", "penstock.demo", WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    with writer:
        for _ in range(ANSWERS_BEFORE_THE_KILL):
            answered = int(writer.stdout.readline())
        writer.kill()  # SIGKILL: no goodbye, no flush, in the middle of whatever it does
        for line in writer.stdout:  # what it answered while the signal was on its way
            answered = int(line) if line.endswith("\n") else answered
    with Ledger.open(str(path)) as ledger:
        found = {entry.seq: entry.payload for entry in _read_all(ledger)}
    lost = [seq for seq in range(1, answered + 1) if found.get(seq) != _order(seq)]
    print(f"  killed with SIGKILL after its answer for order {answered}")
    print(f"  opened again: {len(found)} orders are there, {len(lost)} of the answered ones lost\n")


def _show_damage(path: Path) -> None:
    print("Damage")
    with Ledger.open(str(path)) as ledger:
        before = len(_read_all(ledger))
        victim = read_entry(ledger.messages, before // 2)
    where = victim.offset + victim.size // 2
    with Path(path, "messages", segment_name(1)).open("r+b") as file:
        file.seek(where)
        byte = file.read(1)[0]
        file.seek(where)
        file.write(bytes([byte ^ 0x01]))
    print(f"  one bit of order {victim.seq} is flipped in its file")
    reported: list[Damage] = []
    with Ledger.open(str(path), on_damage=reported.append) as ledger:
        after = len(_read_all(ledger))
        next_seq = ledger.messages.append(b"life goes on")
    for damage in reported:
        print(
            f"  reported: {damage.reason}, at byte {damage.offset}: order {_lost(damage)} is lost"
        )
    kept = ", ".join(sorted(copy.name for copy in path.glob("quarantine/*")))
    print(f"  its bytes are kept in quarantine/{kept}")
    print(f"  read around: {after} of {before} orders; the next one is written as {next_seq}\n")


def _lost(damage: Damage) -> str:
    if damage.first_lost_seq == damage.last_lost_seq:
        return str(damage.first_lost_seq)
    return f"{damage.first_lost_seq} to {damage.last_lost_seq}"


def _write_until_killed(path: str) -> None:
    with Ledger.open(path, LedgerSettings(sync="always")) as ledger:
        seq = 0
        while True:
            seq = ledger.messages.append(_order(seq + 1))
            ledger.commit()
            print(seq, flush=True)


def _order(seq: int) -> bytes:
    return b"order %d: one penstock, two turbines" % seq


def _read_all(ledger: Ledger) -> list[codec.Entry]:
    cursor, entries = Cursor(ledger.messages, 1), []
    while some := cursor.read(1000):
        entries += some
    return entries


def _speed(count: int, start_ns: int) -> str:
    seconds = (SystemClock.monotonic_ns() - start_ns) / 1e9
    return f"{count:,} messages in {seconds:.2f} s, {count / seconds:,.0f} a second"


if __name__ == "__main__":
    if sys.argv[1:2] == [WRITER]:
        try:
            _write_until_killed(sys.argv[2])
        except (BrokenPipeError, KeyboardInterrupt):
            sys.exit(1)  # the demonstration was stopped: its output is closed
    else:
        main()
