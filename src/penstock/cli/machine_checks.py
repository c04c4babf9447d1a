"""What `penstock doctor` checks on this machine: disk, clock, limits, Python, Java."""

import ctypes
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Condition
from typing import Any, Literal, NamedTuple

from penstock import codec
from penstock.cli.formatting import size
from penstock.clock import Clock, SystemClock
from penstock.errors import BadEntry
from penstock.ledger.files import OsFiles
from penstock.ledger.queue_directory import NETWORK_FILE_SYSTEMS
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader

State = Literal["ok", "warn", "fail"]

_GIB = 1 << 30
_FEW_BYTES = 100 << 20  # `min_free_bytes`: below it, messages are refused
_SYNCS = 60
_SLOW_SYNC_S = 0.05
_IMPOSSIBLE_SYNC_S = 0.00002  # no disk is that fast
_FEW_FILES, _ENOUGH_FILES = 256, 4096
_OLDEST_JAVA = 17
_DEEPEST_FOLDER = 4  # NAMESPACE/QUEUE/messages/quarantine
_NO_DISK = frozenset(
    {
        *("proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "debugfs", "tracefs"),
        *("securityfs", "configfs", "efivarfs", "pstore", "bpf", "mqueue", "hugetlbfs"),
    }
)
_CLOCK_S = 0.2
_STALE_S = 60.0
_UNSYNCHRONIZED = 0x40  # STA_UNSYNC of adjtimex(2)
_SOME_TIME_AGO_NS = 1_700_000_000 * 10**9  # 2023: no clock that is set shows less


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    state: State
    text: str
    advice: str = ""


# -- the disk --------------------------------------------------------------------------------------


def check_space(directory: Path) -> Finding:
    found = os.statvfs(directory)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    text = f"{size(free)} of {size(total)} are free"
    if found.f_files and not found.f_favail:
        return Finding("disk space", "fail", f"{text}, but no inode", "remove files")
    if free < _FEW_BYTES:
        return Finding(
            "disk space",
            "fail",
            text,
            "messages are refused below `min_free_bytes`: free space, or compact queues",
        )
    if free < _GIB or free < total // 20:
        return Finding(
            "disk space", "warn", text, "add space, or compact queues, before it is full"
        )
    return Finding("disk space", "ok", text)


def check_file_system(directory: Path) -> Finding:
    kind = OsFiles().file_system(str(directory)) or "unknown"
    if kind in _NO_DISK:
        return Finding(
            "file system", "fail", f"{kind} holds no files of users", "name a directory on a disk"
        )
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            "file system", "fail", kind, "locks and syncs are not reliable there: use a local disk"
        )
    if kind in ("tmpfs", "ramfs"):
        return Finding("file system", "warn", kind, "it is lost at a reboot: use a disk")
    if kind in ("btrfs", "zfs"):
        return Finding(
            "file system",
            "warn",
            kind,
            "allocated space can run out there: keep a tenth of it free, or use ext4 or XFS",
        )
    return Finding("file system", "ok", kind)


def check_syncs(directory: Path, clock: Clock) -> Finding:
    """Measure what a durable answer costs: 4 KiB and fdatasync."""
    took: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=directory, prefix=".penstock-doctor-") as file:
            for number in range(_SYNCS):
                began_ns = clock.monotonic_ns()
                os.pwrite(file.fileno(), bytes(4096), number * 4096)
                os.fdatasync(file.fileno())
                took.append((clock.monotonic_ns() - began_ns) / 1e9)
    except OSError as error:
        return Finding(
            "fsync",
            "fail",
            f"a file cannot be written in {directory}: {error.strerror}",
            "check the disk and its mount options, or name another directory",
        )
    took.sort()
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    text = f"p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms"
    if p99 > _SLOW_SYNC_S:
        return Finding(
            "fsync",
            "warn",
            text,
            "each durable answer waits for it: use an SSD, or sync='interval'",
        )
    if p50 < _IMPOSSIBLE_SYNC_S:
        return Finding(
            "fsync",
            "warn",
            text,
            "faster than a disk: it may only reach a cache, and power loss would take it",
        )
    return Finding("fsync", "ok", text)


# -- the clock -------------------------------------------------------------------------------------


def check_clock(clock: Clock) -> Finding:
    """Compare the wall clock with the monotonic one, and ask the kernel about NTP."""
    wall_ns, steady_ns = clock.now_ns(), clock.monotonic_ns()
    waiting = Condition()
    with waiting:
        clock.wait(waiting, _CLOCK_S)
    off_ns = (clock.now_ns() - wall_ns) - (clock.monotonic_ns() - steady_ns)
    if wall_ns < _SOME_TIME_AGO_NS:
        return Finding("clock", "fail", "it is not set", "set it; ids contain the time")
    if abs(off_ns) > 10_000_000:
        return Finding(
            "clock",
            "warn",
            f"it was stepped by {off_ns / 1e6:+.1f} ms within {_CLOCK_S} s",
            "let NTP slew it (chronyd, systemd-timesyncd)",
        )
    synchronized = ntp_synchronized()
    if synchronized is None:
        return Finding("clock", "ok", "steady; the state of NTP is not visible")
    if not synchronized:
        return Finding(
            "clock",
            "warn",
            "steady, but not synchronized",
            "run chronyd or systemd-timesyncd: schedules and TTLs follow this clock",
        )
    return Finding("clock", "ok", "steady, synchronized by NTP")


def ntp_synchronized() -> bool | None:
    """Return what the kernel knows: whether NTP keeps the clock; None if it does not say."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    buffer = (ctypes.c_long * 64)()  # struct timex: modes (int), offset, freq, maxerror, …, status
    if adjtimex(ctypes.byref(buffer)) < 0:
        return None
    status = ctypes.c_int.from_buffer(buffer, 5 * ctypes.sizeof(ctypes.c_long)).value
    return not status & _UNSYNCHRONIZED


def files_below(directory: Path) -> Iterator[Path]:
    """Yield the files of a queue or a data directory. What cannot be read is passed over.

    Others than these may have any depth: what lies deeper than a queue's files is not looked at.
    """
    for folder, folders, names in os.walk(directory):
        if len(Path(folder).relative_to(directory).parts) >= _DEEPEST_FOLDER:
            folders.clear()
        yield from (Path(folder, name) for name in names)


def check_newest_entry(directory: Path, clock: Clock) -> Finding | None:
    """Compare the clock with the newest segment: it must not lie in the future."""
    newest_ns = 0
    for file in files_below(directory):
        if file.suffix != ".log":
            continue
        try:
            with file.open("rb") as segment:
                header = SegmentHeader.unpack(segment.read(HEADER_BYTES))
            newest_ns = max(newest_ns, header.created_at_ns)
        except (OSError, BadEntry):
            continue
    if newest_ns <= clock.now_ns() + 10**9:
        return None
    ahead_s = (newest_ns - clock.now_ns()) / 1e9
    return Finding(
        "clock went back",
        "warn",
        f"the newest segment is {ahead_s:,.0f} s in the future",
        "set the clock; until it is past that time, new messages carry the older, higher time",
    )


# -- limits ----------------------------------------------------------------------------------------


def check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} (hard limit {hard})"
    advice = "raise it: ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit"
    if soft < _FEW_FILES:
        return Finding("open files", "fail", text, advice)
    if soft < _ENOUGH_FILES:
        return Finding("open files", "warn", text, advice)
    return Finding("open files", "ok", text)


def check_port(host: str, port: int, holder: str | None) -> Finding:
    """Check that a broker could listen, or that the one of this directory does."""
    name = f"port {port}"
    if holder is not None and holder.rstrip("/").endswith(f":{port}"):
        return Finding(name, "ok", f"the broker of this directory listens at {holder}")
    try:
        with socket.create_server((host, port)):
            return Finding(name, "ok", f"free on {host}")
    except OSError as error:
        advice = "stop the other program, or choose a port: penstock serve --port 8081"
        why = os.strerror(error.errno) if error.errno else str(error)
        return Finding(name, "warn", f"{host}: {why}", advice)


# -- programs --------------------------------------------------------------------------------------


def check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"{sys.implementation.name} {version}"
    if sys.implementation.name != "cpython":
        return Finding("Python", "warn", text, "only CPython is tested")
    return Finding("Python", "ok", text)


def check_codec() -> Finding:
    """Check that the compiled code is used, and not older than its source."""
    advice = "install gcc and python3-dev, then penstock again; in a checkout: make"
    if codec.IMPLEMENTATION != "compiled":
        return Finding(
            "compiled codec", "warn", "missing: pure Python is used, many times slower", advice
        )
    folder = Path(codec.__file__).parent
    built = [file.stat().st_mtime for file in folder.glob("_codec*.so")]
    sources = [*folder.glob("*.pyx"), *folder.glob("*.pxi"), *folder.glob("*.pxd")]
    newer = [file for file in sources if built and file.stat().st_mtime > max(built) + _STALE_S]
    if newer:
        return Finding("compiled codec", "warn", f"older than {newer[0].name}", advice)
    return Finding("compiled codec", "ok", "in use")


def check_java() -> Finding:
    """Check for a Java runtime, which only Spark needs."""
    needed = find_spec("pyspark") is not None
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        if not needed:
            return Finding("Java", "ok", "none, and not needed: the extra `spark` is missing")
        return Finding(
            "Java",
            "warn",
            "none" if home is None else f"JAVA_HOME has no {java}",
            "only Spark jobs need it: apt install openjdk-17-jre-headless",
        )
    said = _output_of(java, "-version")
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < _OLDEST_JAVA:
        first = said.splitlines()[0] if said else "it does not run"
        return Finding("Java", "warn", first, f"Spark needs Java {_OLDEST_JAVA} or newer")
    return Finding("Java", "ok", f"version {found[1]}")


def _output_of(*command: str) -> str:
    try:
        ran: Any = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return str(ran.stderr or ran.stdout)


def machine_findings(directory: Path, clock: Clock | None = None) -> list[Finding]:
    """Run the checks of this machine. The directory must exist and be writable."""
    clock = clock or SystemClock()
    return [
        check_space(directory),
        check_file_system(directory),
        check_syncs(directory, clock),
        check_clock(clock),
        check_open_files(),
        check_python(),
        check_codec(),
        check_java(),
    ]
