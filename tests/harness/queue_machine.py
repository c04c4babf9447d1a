"""Every command of a queue as a rule, done to the real one and to the reference, and compared."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.codec import parse_id
from penstock.errors import NoSuchMessage, QueueFull, ReceiptInvalid
from penstock.model import LeasedMessage, Message
from penstock.operations import Browse, Schedule
from penstock.operations.answers import time_ns
from penstock.queue import NewMessage
from penstock.queue.firing import DUE_HEADER, NAME_HEADER
from penstock.queue.operation_handlers import run
from tests.harness.queue_reference import MAX_ATTEMPTS, NS, Place, Post, Reader, Rules
from tests.harness.queue_store import QueueStore
from tests.harness.schedule_reference import Plan, Plans

DEDUP_WINDOW_S = 20
# Dedup ids, and what they are for. Each purpose has a limit of its own.
DEDUP_IDS = {
    **dict.fromkeys("xyz", "message"),
    "client:1": "retry",
    "client:2": "retry",
    "penstock.unique:1": "unique",
    "penstock.unique:2": "unique",
    "penstock.result:1": "result",
    "penstock.result:2": "result",
    "penstock.flow:f/1": "step",
    "penstock.flow:f/2": "step",
    "penstock.flow:f/3": "step",
}
dedup_ids = st.sampled_from([*"xyxyxyz", *DEDUP_IDS])
CATCH_UP = 2  # missed ticks of a schedule
SETTINGS = {
    "segment_bytes": 1024,
    "lease_s": 10,
    "backoff_jitter": 0.0,
    "max_attempts": MAX_ATTEMPTS,
    "dedup_window_s": DEDUP_WINDOW_S,
    "snapshot_every": 40,
}

new_messages = st.builds(
    NewMessage,
    payload=st.just(b"payload"),
    priority=st.none() | st.integers(0, 9),
    delay=st.none() | st.sampled_from([0, 1, 5, 90]),
    ttl=st.none() | st.none() | st.sampled_from([0, 3, 30]),
    key=st.none() | st.sampled_from(["a", "b"]),
    dedup_id=st.none() | st.none() | dedup_ids,
    max_attempts=st.sampled_from([1, None, 2, 4]),
    tenant=st.none() | st.sampled_from(["acme", "acme", "bolt"]),
)
TENANTS = ("", "acme", "bolt")
group_names = st.sampled_from(["main", "main", "main", "audit", "other"])
picks = st.integers(0, 1 << 16)
outcomes = st.sampled_from(["nack", "nack", "nack_later", "ack", "emit", "extend", "release"])
# What throws much away comes seldom, or nothing would ever grow old.
operations = st.sampled_from(
    ["redrive"] * 4
    + ["lease_dead"] * 2
    + ["discard", "cancel", "cancel", "purge", "seek", "create_group", "create_group"]
    + ["delete_group", "pause", "resume", "resume", "compact", "compact", "check"]
)


class QueueMachine(RuleBasedStateMachine):
    """What both kinds of crash share; a subclass says how it crashes."""

    steps_done = 0
    recorded = False
    # `max_messages`, `when_full`, `dedup_entries`, and limits of deliveries.
    bounds: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        sync = "always" if self.recorded else "never"
        settings = {**SETTINGS, **self.bounds, "sync": sync}
        self.store = self.make_store(settings)
        self.queue = self.store.queue
        self.posts: list[Post] = []
        self.bytes_gone: set[int] = set()
        self.limits = Rules.of(self.bounds)
        self.readers = {"main": Reader(is_main=True, rules=self.limits)}
        self.seen: dict[str, tuple[int, str]] = {}  # dedup id -> end of its window, first message
        self.evicted = self.duplicates = 0
        self.paused = False
        self.plans = Plans()
        self.handed_out: list[tuple[str, LeasedMessage]] = []

    def make_store(self, settings: Mapping[str, Any]) -> QueueStore:
        return QueueStore(settings, recorded=self.recorded)

    def teardown(self) -> None:
        self.check_everything()
        self.store.close()

    # -- time --------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.queue.core.clock.now_ns()

    def tick(self) -> None:
        """Let the ends of leases and of keyed messages happen on both sides."""
        self.queue.stats()
        self.queue.sync()  # what time alone brings about is nobody's answer: it would not be synced
        for reader in self.readers.values():
            reader.end_leases(self.now, self.store.clock.monotonic_ns())
            reader.settle_dependents(self.now)
            reader.expire_keyed(self.now)
            reader.settle_dependents(self.now)
        self.schedules_fire()

    @rule(seconds=st.sampled_from([0.05, 0.1, 0.2, 0.4, 1, 4, 30, 100]))
    def time_passes(self, seconds: float) -> None:
        before = self.now
        self.store.clock.advance(seconds)
        assert self.now >= before + round(seconds * NS)
        self.tick()

    @rule(seconds=st.sampled_from([-1000, -3, 0.5, 5, 200]))
    def the_wall_clock_jumps(self, seconds: float) -> None:
        before = self.now
        self.store.clock.jump(seconds)
        assert self.now >= before
        self.tick()

    # -- publishing --------------------------------------------------------------------------------

    @rule(count=st.integers(2, 5), in_batch=st.booleans())
    def enqueue_plain(self, count: int, in_batch: bool) -> None:
        payloads = [b"plain"] * count
        for some in [payloads] if in_batch else [[payload] for payload in payloads]:
            with self.if_there_is_room(len(some)) as there_is:
                ids = self.queue.enqueue_batch(some) if in_batch else [self.queue.enqueue(*some)]
                for id_ in ids if there_is else ():
                    self.published(id_, NewMessage(payload=b"plain"))

    @rule(
        new=st.lists(new_messages, min_size=2, max_size=6),
        links=st.none() | st.none() | st.lists(picks, min_size=1, max_size=8),
    )
    def publish(self, new: list[NewMessage], links: list[int] | None = None) -> None:
        now = self.now
        new = self.linked(new, links or [])
        known = {id_: first for id_, (until, first) in self.seen.items() if until > now}
        ids = {message.dedup_id for message in new if message.dedup_id is not None}
        alone = [message for message in new if message.dedup_id is None]
        count = len(alone) + len(ids - set(known))
        with self.if_there_is_room(count, ids - set(known)):
            answers = self.queue.publish(new)
            for message, answer in zip(new, answers, strict=True):
                first = known.get(message.dedup_id or "")
                assert answer.duplicate == (first is not None)
                if first is not None:
                    assert answer.id == first
                    self.duplicates += 1
                    continue
                after = [answers[o].id if isinstance(o, int) else o for o in message.after or ()]
                self.published(answer.id, message, tuple(parse_id(id_)[2] for id_ in after))
                if message.dedup_id is not None:
                    known[message.dedup_id] = answer.id
                    self.remember(message.dedup_id, answer.id, now)

    def linked(self, new: list[NewMessage], links: list[int]) -> list[NewMessage]:
        """Let messages come after earlier ones, of the batch and others, as the numbers say."""
        after: dict[int, list[str | int]] = {}
        for pick in links:
            number, pick = pick % len(new), pick // 8
            if pick % 2 and number:
                after.setdefault(number, []).append(pick // 2 % number)
            elif self.posts:
                recent = self.posts[-12:]
                after.setdefault(number, []).append(recent[pick // 2 % len(recent)].id)
        failed = "run" if len(links) % 3 == 2 else None
        return [
            replace(message, after=after[number], after_failed=failed)
            if number in after
            else message
            for number, message in enumerate(new)
        ]

    @rule(dedup_id=dedup_ids, priority=st.none() | st.integers(0, 9))
    def enqueue_once(self, dedup_id: str, priority: int | None) -> None:
        """One message alone: of a queue without bounds, on the fast path."""
        now = self.now
        until, first = self.seen.get(dedup_id, (0, ""))
        is_known = until > now
        new = set() if is_known else {dedup_id}
        with self.if_there_is_room(len(new), new) as there_is:
            id_ = self.queue.enqueue(b"once", dedup_id=dedup_id, priority=priority)
            if is_known:
                assert id_ == first
                self.duplicates += 1
            elif there_is:
                self.published(id_, NewMessage(payload=b"once", priority=priority))
                self.remember(dedup_id, id_, now)

    @contextmanager
    def if_there_is_room(
        self, count: int, dedup_ids: Collection[str] = frozenset()
    ) -> Iterator[bool]:
        """For so many more: the block publishes them, or is to be refused."""
        for reader in self.readers.values():
            reader.settle_dependents(self.now)
        if any(self.must_not_forget(purpose, dedup_ids) for purpose in ("unique", "step")):
            with pytest.raises(QueueFull):
                yield False
            return
        bound = self.bounds.get("max_messages")
        if bound is None or count == 0:
            yield True
            return
        excess = {
            name: reader.undelivered() + count - bound for name, reader in self.readers.items()
        }
        fits = max(excess.values()) <= 0
        waiting = {name: reader.waiting() for name, reader in self.readers.items()}
        if not fits and self.bounds["when_full"] == "drop_oldest":
            fits = all(excess[name] <= len(waiting[name]) for name in self.readers)
        if not fits:
            with pytest.raises(QueueFull):
                yield False
            return
        for name, reader in self.readers.items():
            reader.forget(waiting[name][: max(excess[name], 0)])
        yield True

    def remember(self, dedup_id: str, first: str, now: int) -> None:
        """As the queue does: when there are too many for a purpose, the first one goes."""
        self.seen = {id_: seen for id_, seen in self.seen.items() if seen[0] > now}
        self.seen[dedup_id] = (now + DEDUP_WINDOW_S * NS, first)
        alike = [id_ for id_ in self.seen if DEDUP_IDS[id_] == DEDUP_IDS[dedup_id]]
        for id_ in alike[: max(len(alike) - self.most_remembered(DEDUP_IDS[dedup_id]), 0)]:
            del self.seen[id_]
            self.evicted += 1

    def most_remembered(self, purpose: str) -> int:
        setting = "result_entries" if purpose in ("result", "step") else "dedup_entries"
        most: int = self.bounds.get(setting, len(DEDUP_IDS))
        return most

    def must_not_forget(self, purpose: str, dedup_ids: Collection[str]) -> bool:
        """Would these new ids displace one that is promised to stay?"""
        count = sum(DEDUP_IDS[id_] == purpose for id_ in dedup_ids)
        alike = [
            parse_id(first)[2]
            for id_, (until, first) in self.seen.items()
            if DEDUP_IDS[id_] == purpose and until > self.now
        ]
        most = self.most_remembered(purpose)
        displaced = alike[: max(len(alike) + count - most, 0)] if count else []
        main = self.readers["main"]
        return count > most or any(
            purpose == "unique" or not main.has_ended(seq) for seq in displaced
        )

    def published(self, id_: str, new: NewMessage, after: tuple[int, ...] = ()) -> None:
        now = self.now
        assert not isinstance(new.delay, timedelta) and not isinstance(new.ttl, timedelta)
        deliver_at = now + round(new.delay * NS) if new.delay else 0
        post = Post(
            id=id_,
            seq=len(self.posts) + 1,
            published=now,
            priority=5 if new.priority is None else new.priority,
            deliver_at=deliver_at,
            expires=0 if new.ttl is None else max(now, deliver_at) + round(new.ttl * NS),
            key=new.key,
            max_attempts=new.max_attempts or MAX_ATTEMPTS,
            after=after,
            runs_anyway=new.after_failed == "run",
            tenant=new.tenant or "",
        )
        assert self.queue.get(id_).seq == post.seq
        self.posts.append(post)
        for reader in self.readers.values():
            reader.add(post)

    # -- schedules ---------------------------------------------------------------------------------

    @rule(
        change=st.sampled_from(["put", "put", "put", "pause", "resume", "remove"]),
        name=st.sampled_from(["a", "b", "c"]),
        every_s=st.sampled_from([2, 7, 45]),
        misfire=st.sampled_from(["skip", "once", "all"]),
    )
    def schedule(self, change: str, name: str, every_s: int, misfire: str) -> None:
        if "max_messages" in self.bounds:
            return  # a full queue keeps its ticks: see test_schedules
        plan = self.plans.plans.get(name)
        if change == "put":
            self.put_schedule(name, plan, every_s, misfire)
        elif change == "remove":
            assert self.queue.remove_schedule(name) == (plan is not None)
            self.plans.plans.pop(name, None)
        elif plan is not None and change == "pause":
            self.queue.pause_schedule(name)
            plan.paused = True
        elif plan is not None:
            self.queue.resume_schedule(name)
            if plan.paused:
                plan.paused, plan.done = False, max(plan.done, self.now)
        self.check_schedules()

    def put_schedule(self, name: str, before: Plan | None, every_s: int, misfire: str) -> None:
        new = Schedule(
            name, b"tick", every_s=every_s, misfire=misfire, grace_s=3, catch_up_max=CATCH_UP
        )
        self.queue.put_schedule(new)
        if before is not None and before.every_s == every_s:
            before.misfire = misfire
            return
        plan = Plan(every_s, misfire, 3, CATCH_UP, anchor=self.now, done=self.now)
        if before is not None:
            plan.paused, plan.fired = before.paused, before.fired
            plan.last_due, plan.last_missed = before.last_due, before.last_missed
        self.plans.plans[name] = plan

    def schedules_fire(self) -> None:
        """Publish the ticks on the side of the reference, too: in order, each once."""
        expected = self.plans.due(self.now)
        if expected:
            found = run(self.queue.behaviours, Browse("ready", after_seq=len(self.posts))).rows
            ticks = [
                (row.message.headers[NAME_HEADER], time_ns(row.message.headers[DUE_HEADER]))
                for row in found
            ]
            assert ticks == [(name, (at + 500) // 1000 * 1000) for name, at in expected]
            for row in found:
                self.published(row.message.id, NewMessage(payload=b"tick"))

    def check_schedules(self) -> None:
        found = [
            (s.name, s.paused, s.next_ns, s.fired, s.last_due_ns, s.last_missed_ns)
            for s in self.queue.schedules()
        ]
        assert found == self.plans.shown()

    # -- delivering --------------------------------------------------------------------------------

    @rule(group=group_names, count=st.integers(1, 5), length_s=st.sampled_from([3, 10, 40]))
    def lease(self, group: str, count: int, length_s: int) -> None:
        if group in self.readers:
            self.leased(group, count, length_s)

    def leased(self, group: str, count: int, length_s: int) -> list[tuple[str, LeasedMessage]]:
        own_s = None if length_s == SETTINGS["lease_s"] else length_s  # None goes the short way
        found = self.queue.lease(count, lease_s=own_s, group=group)
        for leased, place in zip(found, self.delivered(group, count, found), strict=True):
            self.hand_out(group, leased, place, length_s)
        return [(group, leased) for leased in found]

    def hand_out(self, group: str, leased: LeasedMessage, place: Place, length_s: int) -> None:
        if not place.was_dead:
            self.readers[group].delivered.deliver(place, self.limits, self.now)
        place.state, place.timed_out = "leased", False
        place.attempt += 1
        assert leased.attempt == place.attempt
        place.receipt = leased.receipt
        place.length = length_s * NS
        place.deadline = self.now + place.length
        place.ends = self.store.clock.monotonic_ns() + place.length
        self.handed_out = [*self.handed_out[-30:], (group, leased)]

    @rule(group=group_names, count=st.integers(1, 3), outcome=outcomes)
    def work(self, group: str, count: int, outcome: str) -> None:
        if group in self.readers:
            for pair in self.leased(group, count, 10):
                self.settle_as(outcome, pair)

    @rule(group=group_names, count=st.integers(1, 2))
    def dequeue(self, group: str, count: int) -> None:
        if group in self.readers:
            if count == 1:
                message = self.queue.dequeue(group=group)
                found = [message] if message else []
            else:
                found = self.queue.dequeue_batch(count, group=group)
            reader = self.readers[group]
            for place in self.delivered(group, count, found):
                reader.delivered.deliver(place, self.limits, self.now)
                reader.forget([place], done=True)

    def delivered(
        self, group: str, count: int, found: "list[Message] | list[LeasedMessage]"
    ) -> list[Place]:
        """The places of what was delivered: exactly what was to come next."""
        reader = self.readers[group]
        chosen: list[Place] = []
        while not self.paused:
            chosen, expired = reader.next_ones(count, self.now)
            assert bool(found) == bool(chosen) or expired
            reader.forget(expired)
            reader.settle_dependents(self.now)
            if chosen or not expired:
                break
        assert [message.seq for message in found] == [place.post.seq for place in chosen]
        return chosen

    # -- settling ----------------------------------------------------------------------------------

    @rule(pick=picks, outcome=outcomes)
    def settle(self, pick: int, outcome: str) -> None:
        """Settle something by a receipt of now, or by an old one."""
        held = {p.receipt for r in self.readers.values() for p in r.places.values()}
        receipts = [pair for pair in self.handed_out if pair[1].receipt in held][-8:]
        receipts += self.handed_out[-3:]
        if receipts:
            self.settle_as(outcome, receipts[pick % len(receipts)])

    def settle_as(self, outcome: str, handed_out: tuple[str, LeasedMessage]) -> None:
        group, leased = handed_out
        reader = self.readers.get(group, Reader())
        late_is_fine = outcome in ("ack", "emit")
        place = reader.holder_of(leased.receipt, late_is_fine=late_is_fine)
        try:
            emitted = self.do_settle(outcome, leased)
        except ReceiptInvalid:
            assert place is None
            return
        assert place is not None
        match outcome:
            case "nack":
                reader.fail(place, self.now)
            case "nack_later":
                reader.fail(place, self.now, 2 * NS)
            case "ack" | "emit":
                reader.forget([place], done=True)
                reader.settle_dependents(self.now)
            case "extend":
                place.length = 50 * NS
                place.deadline = self.now + place.length
                place.ends = self.store.clock.monotonic_ns() + place.length
            case "release":
                place.state, place.receipt = "dead" if place.was_dead else "waiting", ""
                place.attempt -= 1
        for id_ in emitted:
            self.published(id_, NewMessage(payload=b"follow-up", key="a"))

    def do_settle(self, outcome: str, leased: LeasedMessage) -> list[str]:
        one = leased if leased.seq % 2 else leased.receipt
        match outcome:
            case "nack":
                self.queue.nack(one, "it failed")
            case "nack_later":
                self.queue.nack([one], "it failed", delay=2)
            case "ack":
                self.queue.ack(one)
            case "emit":
                return self.queue.ack(one, emit=[NewMessage(payload=b"", key="a")] * 2)
            case "extend":
                self.queue.extend(one, 50)
            case "release":
                self.queue.release([one])
        return []

    # -- operating ---------------------------------------------------------------------------------

    @rule(operation=operations, group=group_names, pick=st.none() | picks)
    def operate(self, operation: str, group: str, pick: int | None) -> None:
        reader = self.readers.get(group)
        match operation:
            case "redrive" | "discard" if reader is not None:
                self.settle_dead(group, reader, pick, redrive=operation == "redrive")
            case "lease_dead" if reader is not None:
                self.lease_dead(group, reader)
            case "cancel" if self.kept_posts():
                self.cancel(self.kept_posts()[(pick or 0) % len(self.kept_posts())])
            case "purge" if pick is None or reader is not None:
                self.purge(None if pick is None else group)
            case "seek" if reader is not None:
                target = max(len(self.posts) + 1 - (pick or 0) % 12, 1)
                target = self.queue.seek(seq=target, group=group)
                reader.seek(target, self.kept_posts())
            case "create_group" if reader is None:
                self.create_group(group, pick)
            case "delete_group" if reader is not None and group != "main":
                self.queue.groups.delete(group)
                del self.readers[group]
            case "pause":
                self.queue.pause()
                self.paused = True
            case "resume":
                self.queue.resume()
                self.paused = False
            case "compact":
                self.compact()
            case "check":
                self.check_everything()

    def settle_dead(self, group: str, reader: Reader, pick: int | None, *, redrive: bool) -> None:
        dead = [p for p in reader.places.values() if p.state == "dead"]
        assert {letter.id for letter in self.queue.dead(group=group)} == {p.post.id for p in dead}
        if pick is not None:
            dead = dead[pick % len(dead) :][:1] if dead else []
        ids = None if pick is None else [place.post.id for place in dead]
        settle = self.queue.redrive if redrive else self.queue.discard
        assert settle(ids, group=group) == len(dead)
        if not redrive:
            reader.forget(dead)
            return
        for place in dead:
            reader.places[place.post.seq] = reader.redriven(place, self.now)

    def lease_dead(self, group: str, reader: Reader) -> None:
        dead = [p.post.seq for p in reader.places.values() if p.state == "dead"]
        found = self.queue.lease_dead(2, lease_s=10, group=group)
        assert len(found) == min(2, len(dead))
        for leased in found:
            assert leased.seq in dead
            self.hand_out(group, leased, reader.places[leased.seq], 10)

    def cancel(self, post: Post) -> None:
        places = [reader.places.get(post.seq) for reader in self.readers.values()]
        for reader, place in zip(self.readers.values(), places, strict=True):
            reader.forget([place] if place else [])
        assert self.queue.cancel(post.id) == any(places)

    def purge(self, group: str | None) -> None:
        purged = 0
        for name, reader in self.readers.items():
            if group in (None, name):
                waiting = reader.waiting()
                reader.forget(waiting)
                purged += len(waiting)
        assert self.queue.purge(group=group) == purged

    def create_group(self, group: str, pick: int | None) -> None:
        target = 1 if pick is None else max(len(self.posts) + 1 - pick % 12, 1)
        options: dict[str, Any] = {"to": "beginning"} if pick is None else {"seq": target}
        self.queue.groups.create(group, **options)
        self.readers[group] = Reader(rules=self.limits)
        self.readers[group].seek(target, self.kept_posts())

    def compact(self) -> None:
        """With traffic beside it: enough to seal the segment that was being written."""
        traffic = [[NewMessage(payload=b"beside" * 20)] * 3 for _ in range(3)]
        self.queue.compact(on_progress=lambda _: self.publish(traffic.pop()) if traffic else None)
        for post in self.kept_posts():
            try:
                self.queue.get(post.id)
            except NoSuchMessage:
                needed = [name for name, r in self.readers.items() if post.seq in r.places]
                assert not needed, f"message {post.seq} is gone, and {needed} need it"
                self.bytes_gone.add(post.seq)

    def kept_posts(self) -> list[Post]:
        return [post for post in self.posts if post.seq not in self.bytes_gone]

    # -- dying -------------------------------------------------------------------------------------

    @rule(by_itself=st.booleans())
    def die(self, by_itself: bool) -> None:
        if by_itself:
            self.store.reopen()
        else:
            self.store.kill()
        self.reopened()

    def reopened(self) -> None:
        self.queue = self.store.queue
        mono = self.store.clock.monotonic_ns()
        now = self.now
        assert now >= max((post.published for post in self.posts), default=0)
        for reader in self.readers.values():
            reader.delivered.reopen(self.limits, now)
            for place in reader.places.values():
                if place.state == "leased":
                    place.ends = mono + max(min(place.deadline - now, place.length), 0)
        self.tick()
        self.check_everything()

    # -- comparing ---------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        type(self).steps_done += 1
        stats = self.queue.stats()
        assert stats.paused == self.paused
        assert stats.published == len(self.posts)
        assert (stats.dedup_evicted, stats.deduplicated) == (self.evicted, self.duplicates)
        assert set(stats.groups) == set(self.readers)
        for name, reader in self.readers.items():
            reader.settle_dependents(self.now)  # a message that is dead at once cannot expire
            reader.expire_keyed(self.now)
            reader.settle_dependents(self.now)
            self.limits_hold(name, reader)
            counts = reader.counts(self.now)
            found = stats.groups[name]
            assert {state: getattr(found, state) for state in counts} == counts, name

    def limits_hold(self, group: str, reader: Reader) -> None:
        """No more are leased than may be, by what the queue itself says."""
        by_tenant = reader.in_flight()
        for whose in (None, *TENANTS):
            bucket = self.limits.queue if whose is None else self.limits.tenant
            assert not bucket.most or by_tenant[whose] <= bucket.most, (group, whose)

    def check_everything(self) -> None:
        now = self.now
        self.check_schedules()
        for name, reader in self.readers.items():
            expected = {}
            reader.settle_dependents(now)
            states = reader.states(now)
            for post in self.kept_posts():
                state = states.get(post.seq, "done")
                waits = state in ("ready", "scheduled", "parked", "blocked")
                over = waits and 0 < post.expires <= now
                expected[post.id] = "expired" if over else state
            found = {id_: self.queue.state(id_, group=name) for id_ in expected}
            assert found == expected, name
            live = [m.seq for m in self.queue.browse(group=name)]
            assert live == sorted(reader.places), name
            if not self.paused:
                chosen, _ = reader.next_ones(3, now)
                peeked = [m.seq for m in self.queue.peek(3, group=name)]
                assert peeked == [p.post.seq for p in chosen], name
