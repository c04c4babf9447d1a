"""Read the jobs of one tube from the binlog of beanstalkd (`-b DIR`).

A file `binlog.N` starts with its version (int32, 7), then records: int32 length of the tube's name,
the name, the job's record in the C layout of the machine, and the body with its final CR LF. A
record without a name changes the state of a job that is known already. Zeros are unused space.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.importing.record import MAX_PROBLEMS, Imported, ImportFailed
from penstock.model import NS
from penstock.server.beanstalk.mapping import headers_of, priority_of

_VERSION = 7
_INT = struct.Struct("=i")
# id, pri, delay, ttr, body size, created, deadline, reserves, timeouts, releases, buries, kicks,
# state; the last format pads as C does.
_JOB = struct.Struct("@QIqqiqqIIIIIB0q")
_READY, _RESERVED, _BURIED, _DELAYED = 1, 2, 3, 4
_STATES = (0, _READY, _RESERVED, _BURIED, _DELAYED, 5)  # 0 is deleted, 5 a copy
_MOST_NAME_BYTES = 200
_REASON = "buried in beanstalkd"


class _Job(NamedTuple):
    tube: str
    pri: int
    ttr_ns: int
    created_ns: int
    deadline_ns: int
    timeouts: int
    releases: int
    buries: int
    state: int
    body: bytes


class BeanstalkdLog:
    """The jobs of one tube in a binlog directory."""

    max_attempts: int | None = None

    def __init__(self, path: str, *, queue: str | None = None) -> None:
        """Choose the tube. It may be left out if jobs of only one tube are there."""
        root = Path(path)
        self.problems: list[str] = []
        files = [one for one in root.glob("binlog.*") if one.suffix[1:].isdigit()]
        if not files:
            raise ImportFailed(f"{path} has no binlog of beanstalkd (files like binlog.1).")
        jobs: dict[int, _Job] = {}
        for file in sorted(files, key=lambda one: int(one.suffix[1:])):
            self._read(file, jobs)
        tubes = sorted({job.tube for job in jobs.values()})
        if queue is None and len(tubes) == 1:
            [queue] = tubes
        if queue not in tubes:
            raise ImportFailed(
                f"{path} has jobs in the tubes {', '.join(tubes) or '(none)'}: "
                "choose one with --queue."
            )
        self._jobs = {job_id: job for job_id, job in sorted(jobs.items()) if job.tube == queue}
        self.name = f"tube {queue!r} of beanstalkd at {path}"

    def messages(self) -> Iterator[Imported]:
        for job_id, job in self._jobs.items():
            buried = job.state == _BURIED
            yield Imported(
                origin=f"job {job_id}",
                payload=job.body,
                timestamp_ns=job.created_ns,
                state="dead" if buried else "waiting",
                priority=priority_of(job.pri),
                headers=headers_of(job.pri, job.ttr_ns // NS) or {},
                deliver_ns=job.deadline_ns if job.state == _DELAYED else None,
                failures=job.timeouts + job.releases + job.buries,
                reason=_REASON if buried else "",
            )

    def _read(self, path: Path, jobs: dict[int, _Job]) -> None:
        data = path.read_bytes()
        if len(data) < _INT.size or _INT.unpack_from(data)[0] != _VERSION:
            raise ImportFailed(f"{path} is not a binlog of version {_VERSION}.")
        at = _INT.size
        while at + _INT.size + _JOB.size <= len(data):
            [name_bytes] = _INT.unpack_from(data, at)
            if not 0 <= name_bytes <= _MOST_NAME_BYTES:
                return self._note(f"{path.name}: damaged at {at}: the rest is left out")
            start = at + _INT.size + name_bytes
            if start + _JOB.size > len(data):
                return self._note(f"{path.name}: the record at {at} is incomplete")
            record = _JOB.unpack_from(data, start)
            job_id, state, body_bytes = record[0], record[12], record[4]
            if not job_id:
                return None  # unused space
            if state not in _STATES or body_bytes < 2:
                return self._note(f"{path.name}: damaged at {at}: the rest is left out")
            end = start + _JOB.size
            body = b""
            if name_bytes:
                body, end = data[end : end + body_bytes], end + body_bytes
                if end > len(data):
                    return self._note(f"{path.name}: the record at {at} is incomplete")
            tube = data[at + _INT.size : start].decode("latin-1")
            _apply(jobs, record, tube, body)
            at = end
        return None

    def _note(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def _apply(jobs: dict[int, _Job], record: tuple[int, ...], tube: str, body: bytes) -> None:
    job_id, pri, _, ttr, _, created, deadline, _, timeouts, releases, buries, _, state = record
    known = jobs.get(job_id)
    if state == 0:
        jobs.pop(job_id, None)
    elif tube or known is not None:
        tube, body = (tube, body[:-2]) if tube else (known.tube, known.body)  # type: ignore[union-attr]
        counts = (timeouts, releases, buries)
        jobs[job_id] = _Job(tube, pri, ttr, created, deadline, *counts, state, body)
