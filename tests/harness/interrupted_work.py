"""A process that works on a queue while real signals interrupt it, and judges after each of them.

    python -m tests.harness.interrupted_work DIRECTORY SYNC SEED INTERRUPTS

The signal comes from a timer, at a random time within a call. What a call was to do may have been
done or not; everything else must be as it was. So after each interrupt all messages are looked at:
what was answered is true, an interrupted batch is there as a whole or not at all, what is leased is
not leased again, and memory is the fold of the log. Prints how many interrupts there were.
"""

import faulthandler
import logging
import signal
import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any, cast

from penstock.model import LeasedMessage
from penstock.queue import NewMessage
from penstock.queue.queue import open_queue
from tests.harness.interrupted_life import difference, facts_of, fold_from_the_start

HANGS_AFTER_S = 60
_MOST = 40  # messages that are there at a time
SETTINGS = {
    "segment_bytes": 4096,
    "min_free_bytes": 0,
    "auto_compact": False,
    "backoff_base_s": 0,
    "backoff_jitter": 0.0,
    "max_attempts": 3,
    "snapshot_every": 30,
    "sync_interval_s": 0.01,
    "lease_s": 3600,
}


class Interrupted(Exception):
    """No KeyboardInterrupt, to show that any will do."""


class Work:
    """A queue, what is known to be in it, and the call that may be interrupted."""

    def __init__(self, directory: str, sync: str, seed: int) -> None:
        self.directory = directory
        self.settings = {**SETTINGS, "sync": sync}
        self.random = Random(seed)
        self.interrupts = 0
        self.calls = 0
        self.live: set[bytes] = set()
        self.done: set[bytes] = set()
        self.held: dict[bytes, LeasedMessage] = {}
        self._published = 0
        self._busy = False
        self._kinds: list[type[BaseException]] = [KeyboardInterrupt, Interrupted]
        self.queue = open_queue(directory, self.settings)
        signal.signal(signal.SIGALRM, self._on_signal)

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        if self._busy:
            self._busy = False
            self.interrupts += 1
            raise self.random.choice(self._kinds)

    def call(self, do: Callable[[], Any]) -> tuple[bool, Any]:
        """Do it, and let it be interrupted: whether it was answered, and the answer."""
        self.calls += 1
        longest_s = self.random.choice([0.0001, 0.0005, 0.002])
        try:
            self._busy = True
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(0.00001, longest_s))
            answer = do()
            self._busy = False
        except (KeyboardInterrupt, Interrupted):
            return False, None
        except (RuntimeError, KeyError) as error:
            if not isinstance(error.__context__, KeyboardInterrupt | Interrupted):
                raise
            return False, None  # so answers `Thread.start` of Python
        finally:
            self._busy = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return True, answer

    # -- steps -------------------------------------------------------------------------------------

    def step(self) -> None:
        steps = [self.publish, self.publish, self.lease, self.settle, self.settle, self.take]
        steps += [self.operate]
        if len(self.live) > _MOST:
            steps = [self.take, self.lease, self.settle]
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        self.random.choice(steps)()

    def _new(self, count: int) -> list[NewMessage]:
        found = []
        for _ in range(count):
            self._published += 1
            options: list[dict[str, Any]] = [{}, {}, {"key": "a"}, {"priority": 8}]
            options += [{"delay": 0.0001}, {"max_attempts": 1}]
            options.append({"dedup_id": f"{self._published}"})
            payload = b"%d" % self._published
            found.append(NewMessage(payload=payload, **self.random.choice(options)))
        return found

    def publish(self) -> None:
        new = self._new(self.random.choice([1, 1, 3]))
        plain = self.random.random() < 0.4
        payloads = [cast(bytes, one.payload) for one in new]
        if plain and len(new) == 1:
            answered, _ = self.call(lambda: self.queue.enqueue(payloads[0]))
        elif plain:
            answered, _ = self.call(lambda: self.queue.enqueue_batch(payloads))
        else:
            answered, _ = self.call(lambda: self.queue.publish(new))
        if answered:
            self.live.update(payloads)
        else:
            self.judge(appears=set(payloads))

    def lease(self) -> None:
        count = self.random.choice([1, 1, 4])
        answered, jobs = self.call(lambda: self.queue.lease(count))
        for job in jobs or ():
            assert job.payload in self.live, f"{job.payload!r} is done, and was leased"
            assert job.payload not in self.held, f"{job.payload!r} was leased twice"
            self.held[job.payload] = job
        if not answered:
            self.judge(leases=count)

    def take(self) -> None:
        count = self.random.choice([1, 1, 4])
        if count == 1:
            answered, message = self.call(lambda: self.queue.dequeue())
            taken = [message] if message else []
        else:
            answered, taken = self.call(lambda: self.queue.dequeue_batch(count))
        for message in taken or ():
            assert message.payload in self.live, f"{message.payload!r} is done, and was taken"
            assert message.payload not in self.held, f"{message.payload!r} is leased, and was taken"
            self._is_done(message.payload)
        if not answered:
            self.judge(takes=count)

    def settle(self) -> None:
        if not self.held:
            return
        payload = self.random.choice(sorted(self.held))
        job = self.held.pop(payload)
        outcome = self.random.choice(["ack", "ack", "ack", "emit", "nack", "release", "extend"])
        emitted = self._new(2) if outcome == "emit" else []
        do: dict[str, Callable[[], Any]] = {
            "ack": lambda: self.queue.ack(job),
            "emit": lambda: self.queue.ack(job, emit=emitted),
            "nack": lambda: self.queue.nack(job, "failed", delay=0),
            "release": lambda: self.queue.release(job),
            "extend": lambda: self.queue.extend(job, 3600),
        }
        answered, _ = self.call(do[outcome])
        follow_ups = {cast(bytes, one.payload) for one in emitted}
        if outcome == "extend":
            self.held[payload] = job
        if answered and outcome in ("ack", "emit"):
            self._is_done(payload)
            self.live |= follow_ups
        elif not answered and outcome in ("ack", "emit"):
            self.judge(settles=payload, appears=follow_ups)
        elif not answered:
            self.judge()

    def operate(self) -> None:
        do: list[Callable[[], Any]] = [
            lambda: self.queue.redrive(),
            lambda: self.queue.stats(),
            lambda: self.queue.peek(5),
            lambda: self.queue.compact(),
            lambda: self.queue.sync(),
            lambda: self.queue.groups.create("other", to="end"),
            lambda: self.queue.groups.delete("other") if "other" in self.queue.groups else None,
            lambda: self.queue.pause(),
            lambda: self.queue.close(),
        ]
        answered, _ = self.call(self.random.choice(do))
        if self.queue.core.ledger.refusal is not None:
            self.reopen()
        else:
            self.queue.resume()
        if not answered:
            self.judge()

    def reopen(self) -> None:
        self.queue.close()
        self.queue = open_queue(self.directory, self.settings)

    def _is_done(self, payload: bytes) -> None:
        self.live.discard(payload)
        self.held.pop(payload, None)
        self.done.add(payload)

    # -- judging -----------------------------------------------------------------------------------

    def judge(
        self,
        *,
        appears: "set[bytes] | frozenset[bytes]" = frozenset(),
        takes: int = 0,
        leases: int = 0,
        settles: bytes | None = None,
    ) -> None:
        """After an interrupt: everything is there but for what the call may have done."""
        if self.random.random() < 0.05:
            self.reopen()
        there = {message.payload: message.id for message in self.queue.browse()}
        new = set(there) & appears
        assert new in (set(), appears), f"{new} of {appears} were published"
        settled = settles is not None and settles not in there
        if settles is not None and appears:
            assert settled == bool(new), "acked without its follow-ups, or they without the ack"
        gone = self.live - set(there) - {settles}
        assert len(gone) <= takes, f"{gone} are lost"
        assert not gone & set(self.held), "what is leased was taken"
        assert not set(there) & self.done, f"{set(there) & self.done} are back"
        unknown = set(there) - self.live - appears
        assert not unknown, f"nobody published {unknown}"
        for payload in (*gone, *([settles] if settled and settles else ())):
            self._is_done(payload)
        self.live |= new
        leased = {message.payload for message in self.queue.browse("leased")}
        assert set(self.held) <= leased, f"{set(self.held) - leased} lost their leases"
        orphans = leased - set(self.held)  # leased by the call, or not settled by it
        assert len(orphans) <= max(leases, 1), f"{orphans} are leased to nobody"
        for payload in orphans:
            assert self.queue.cancel(there[payload])
            self._is_done(payload)
        if self.random.random() < 0.2:
            self._check_fold()

    def _check_fold(self) -> None:
        core = self.queue.core
        with core.lock, core.change:
            core.catch_up()
            facts, folded = facts_of(core.state), facts_of(fold_from_the_start(core))
        assert facts == folded, difference(folded, facts)

    def finish(self) -> None:
        """Everything that is there can be had, once."""
        for job in self.held.values():
            self.queue.release(job)
        self.queue.redrive()
        while found := self.queue.dequeue_batch(100, wait_s=0.01):
            for message in found:
                assert message.payload in self.live
                self._is_done(message.payload)
        assert not self.live, f"{self.live} are lost"
        self.queue.close()
        faulthandler.cancel_dump_traceback_later()


def main(directory: str, sync: str, seed: str, interrupts: str) -> None:
    logging.disable(logging.CRITICAL)
    work = Work(directory, sync, int(seed))
    while work.interrupts < int(interrupts):
        work.step()
    work.finish()
    print(work.interrupts, work.calls)


if __name__ == "__main__":
    main(*sys.argv[1:])
