"""Processes that share a directory and work on it, while their holder is killed again and again.

Each process writes a journal, unbuffered, before and after each call. The judge compares the
journals with what is in the queue at the end.
"""

import json
import os
import select
import signal
import time
from collections import Counter, defaultdict
from contextlib import nullcontext, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import penstock
from penstock.errors import ReceiptInvalid

_PATIENCE_S = 100
_context = get_context("forkserver")
_context.set_forkserver_preload(["penstock.shared", "tests.harness.shared_kill"])


class SharedKills:
    """One queue, many processes."""

    def __init__(self, directory: Path, seed: str, *, processes: int, **settings: Any) -> None:
        """`settings`: options of `penstock.open`; with `queue`, the directory has several."""
        self._path = directory / "shared"
        self._queue = self._path / settings.get("queue", ".")
        self._journals = directory / "journals"
        self._journals.mkdir()
        self._random = Random(seed)
        self._settings = settings
        self._answers, self._answered = _context.Pipe(duplex=False)
        self._stopping, self._stop = _context.Pipe(duplex=False)
        self._processes: dict[int, Any] = {}
        self._started = 0
        self.killed_holders = 0
        for _ in range(processes):
            self._start()

    def _start(self) -> None:
        self._started += 1
        process = _context.Process(
            target=_work,
            args=(
                str(self._path),
                str(self._journals / f"{self._started}.jsonl"),
                self._answered,
                self._stopping,
                self._random.random(),
                self._settings,
            ),
            daemon=True,
        )
        process.start()
        assert process.pid is not None
        self._processes[process.pid] = process

    def kill_the_holder(self) -> None:
        """Let the processes work, kill the one that serves them, and start another one."""
        self._wait_for_answers(self._random.randrange(40, 160))
        holder = json.loads((self._path / "LOCK").read_bytes() or b"{}").get("pid")
        process = self._processes.pop(holder, None)
        if process is None:
            return  # a process is just taking over
        os.kill(holder, signal.SIGKILL)
        process.join(_PATIENCE_S)
        self.killed_holders += 1
        self._start()

    def _wait_for_answers(self, count: int) -> None:
        ends = time.monotonic() + _PATIENCE_S
        while count > 0:
            ready, _, _ = select.select([self._answers], [], [], max(ends - time.monotonic(), 0))
            assert ready, "the processes were not answered"
            count -= len(os.read(self._answers.fileno(), count))

    def finish(self) -> None:
        """Let all processes end what they do, and close."""
        self._wait_for_answers(100)  # with the last holder
        self._stop.close()
        self._stopping.close()
        while self._processes:
            _, process = self._processes.popitem()
            ends = time.monotonic() + _PATIENCE_S
            while process.is_alive() and time.monotonic() < ends:
                select.select([self._answers], [], [], 0.1)
                with suppress(BlockingIOError):
                    os.set_blocking(self._answers.fileno(), False)
                    os.read(self._answers.fileno(), 1 << 16)  # a full pipe would stop them
                process.join(0.05)
            assert process.exitcode == 0, f"a process ended with {process.exitcode}"

    def judge(self) -> int:
        """Nothing answered is lost, nothing is there twice, nothing acked comes back.

        Return the number of messages.
        """
        journal = [
            json.loads(line)
            for file in self._journals.iterdir()
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        by_kind: dict[str, list[Any]] = defaultdict(list)
        for kind, *values in journal:
            by_kind[kind].append(values)
        assert not by_kind["wrong"], by_kind["wrong"]
        published = dict(by_kind["published"])
        asked = {payload for (payload,) in by_kind["publish"]}
        acked = dict(by_kind["acked"])
        ack_asked = {id_ for (id_,) in by_kind["ack"]}
        with penstock.open(self._queue) as queue:
            waiting = {message.id for message in queue.browse()}
            queue.seek("beginning")
            every = []
            while found := queue.dequeue_batch(1000):
                every += found
        there = {message.id: message.payload.decode() for message in every}
        counts = Counter(there.values())
        doubled = [payload for payload, count in counts.items() if count > 1]
        assert not doubled, f"published once, and there twice: {doubled}"
        assert not counts.keys() - asked, "there, and never published"
        lost = {id_ for id_, payload in published.items() if there.get(id_) != payload}
        assert not lost, f"published and answered, and gone: {lost}"
        unfinished = published.keys() - ack_asked
        assert unfinished <= waiting, f"never acked, and done: {unfinished - waiting}"
        assert not acked.keys() & waiting, "acked, and waiting again"
        back = [
            id_ for id_, asked_at in by_kind["leased"] if asked_at > acked.get(id_, float("inf"))
        ]
        assert not back, f"acked, and delivered again: {back}"
        return len(every)


def _work(
    path: str,
    journal: str,
    answered: Connection,
    stopping: Connection,
    seed: float,
    settings: dict[str, Any],
) -> None:
    random = Random(seed)
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*values: Any) -> None:
        os.write(out, json.dumps(values).encode() + b"\n")

    try:
        with penstock.open(path, shared=True, retry_s=_PATIENCE_S, **settings) as queue:
            strict = queue.details().settings.storage.sync != "always"
            number = 0
            while not select.select([stopping], [], [], 0)[0]:
                if random.random() < 0.6:
                    payloads = [f"{os.getpid()}-{number + n}" for n in range(random.choice([1, 4]))]
                    number += len(payloads)
                    _publish(queue, payloads, note)
                else:
                    _consume(queue, random, note, strict=strict)
                os.write(answered.fileno(), b".")
    except Exception as error:
        note("wrong", repr(error))
        raise


def _publish(queue: penstock.AnyQueue, payloads: list[str], note: Any) -> None:
    for payload in payloads:
        note("publish", payload)
    ids = (
        [queue.enqueue(payloads[0])]
        if len(payloads) == 1
        else queue.enqueue_batch([payload.encode() for payload in payloads])
    )
    for id_, payload in zip(ids, payloads, strict=True):
        note("published", id_, payload)


def _consume(queue: penstock.AnyQueue, random: Random, note: Any, *, strict: bool) -> None:
    asked_at = time.monotonic()
    leased = queue.lease(random.choice([1, 3]))
    for job in leased:
        note("leased", job.id, asked_at)
    for job in leased:
        if random.random() < 0.2:
            with nullcontext() if strict else suppress(ReceiptInvalid):
                queue.nack(job, "again", delay=0)
            continue
        note("ack", job.id)
        try:
            queue.ack(job)
        except ReceiptInvalid:
            # With `always`, a lease is on disk 10 ms after it was handed over.
            if strict:
                raise
        else:
            note("acked", job.id, time.monotonic())
