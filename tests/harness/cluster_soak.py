"""Three brokers on one PostgreSQL, under load, while brokers and the database are disturbed.

Publishers send each message under a dedup id until it is answered; each key has one publisher. The
consumers ack most messages and nack some. At the end all queues are drained, and what was delivered
is compared with what was answered:

- every published message was delivered, with its own id, and none under two ids;
- no message was delivered after its ack was answered;
- the messages of a key were delivered in their order;
- the seqs of each queue are dense.
"""

import http.client
import json
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from penstock.codec import parse_id
from tests.harness.cluster_kill import BrokerProcess
from tests.harness.postgres_server import PostgresServer
from tests.harness.soak_history import History

_TIMEOUT_S = 10.0  # of a request: a stopped broker does not answer
_QUEUES = ("orders", "mail", "jobs")
_KEYS_EACH = 5
_PAUSE_S = 0.01
_DRAIN_S = 240.0
_REPORT_S = 10.0  # the clients ask the brokers what became of a message
_MOST_REPORTS = 10
DISTURBANCES = ("kill", "restart", "database", "stop")
_STOPPED_S = (1.0, 22.0)  # shorter and longer than a silent broker keeps its queues


class Notes:
    """What the clients did, and were answered. Methods are called by any thread."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()
        self.ids: dict[str, str] = {}  # payload -> id, of publishes that were answered
        self.seen: dict[str, str] = {}  # payload -> id, of deliveries
        self.acked: dict[str, int] = {}  # ids whose ack was answered, and as the how many-th
        self._asked: set[str] = set()  # … or at least sent
        self._latest: dict[str, int] = defaultdict(lambda: -1)  # by key: the number delivered last
        self._seqs: dict[int, set[int]] = defaultdict(set)  # by queue's identity
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def published(self, payload: str, id_: str, *, again: bool) -> None:
        self._history.note(payload, f"published as {id_}, {parse_id(id_)}")
        with self._lock:
            self.counts["publishes answered"] += 1
            self.counts["of these after a retry"] += again
            if self.ids.setdefault(payload, id_) != id_:
                self.wrong.append(f"{payload} was answered with {self.ids[payload]} and {id_}")

    def leasing(self) -> int:
        """Return the number of acks: a lease that is sent now may have none of these messages."""
        with self._lock:
            return len(self.acked)

    def delivered(self, payload: str, id_: str, acks_before: int) -> list[str]:
        """Note a delivery. Return the messages of its key that must be looked at, if any."""
        with self._lock:
            before = len(self.wrong)
            self.counts["deliveries"] += 1
            if self.acked.get(id_, acks_before) < acks_before:
                self.wrong.append(f"{payload} ({id_}) was delivered after its ack")
            if self.seen.setdefault(payload, id_) != id_:
                self.wrong.append(f"{payload} is there as {self.seen[payload]} and as {id_}")
            _, identity, seq = parse_id(id_)
            self._seqs[identity].add(seq)
            key, _, number = payload.rpartition(":")
            if not key.startswith("key"):
                return [payload] if len(self.wrong) > before else []
            latest = self._latest[key]
            self._in_order(key, int(number), id_)
            if len(self.wrong) == before:
                return []
            first, last = sorted((latest, int(number)))
            return [f"{key}:{one}" for one in range(max(first, 0), last + 1)]

    def _in_order(self, key: str, number: int, id_: str) -> None:
        latest = self._latest[key]
        if number > latest + 1:
            missing = [(one, self._known(f"{key}:{one}")) for one in range(latest, number)]
            self.wrong.append(f"{key}: {number} ({parse_id(id_)}) was delivered before {missing}")
        elif number < latest and id_ in self.acked:
            self.wrong.append(f"{key}: {number} was delivered again after {latest}")
        self._latest[key] = max(latest, number)

    def _known(self, payload: str) -> str:
        """Return what is known of a message, for the report."""
        id_ = self.ids.get(payload)
        if id_ is None:
            return "its publish is not answered"
        return f"{id_} {parse_id(id_)}, seen: {payload in self.seen}, acked: {id_ in self.acked}"

    def id_of(self, payload: str) -> str | None:
        return self.ids.get(payload) or self.seen.get(payload)

    def asked(self, id_: str) -> None:
        with self._lock:
            self._asked.add(id_)

    def settled(self, id_: str, status: str) -> None:
        with self._lock:
            self.counts[f"acks {status}"] += 1
            if status in ("done", "repeated"):
                self.acked.setdefault(id_, len(self.acked))

    def failed(self) -> None:
        with self._lock:
            self.counts["requests that failed"] += 1

    def judge(self) -> None:
        """Compare everything. All queues have been drained."""
        assert not self.wrong, self.wrong[:10]
        lost = {payload: id_ for payload, id_ in self.ids.items() if self.seen.get(payload) != id_}
        assert not lost, f"answered, and never delivered: {list(lost.items())[:10]}"
        unsettled = set(self.seen.values()) - self.acked.keys() - self._asked
        assert not unsettled, f"delivered, and neither settled nor there: {list(unsettled)[:10]}"
        for seqs in self._seqs.values():
            missing = set(range(min(seqs), max(seqs) + 1)) - seqs
            assert min(seqs) <= 1, f"the first seq is {min(seqs)}"
            assert not missing, f"there are no messages with the seqs {sorted(missing)[:10]}"


class Soak:
    """Brokers, a database and clients, from entering the context until leaving it."""

    def __init__(
        self, directory: Path, server: PostgresServer, seed: str, *, lease_s: float = 20.0
    ) -> None:
        self.lease_s = lease_s
        self._server = server
        self._random = Random(seed)
        self.brokers = [
            BrokerProcess(directory, server.url, number, log_level="info", lease_s=lease_s)
            for number in range(3)
        ]
        self.history = History(directory, server.url)
        self.notes = Notes(self.history)
        self._is_publishing = True
        self._is_over = threading.Event()
        self._empty: Counter[str] = Counter()  # leases in a row without a message, by queue
        works: list[Callable[[Random], None]] = [
            *(Publisher(self, number).work for number in range(4)),
            *(Consumer(self).work for _ in range(4)),
        ]
        self._clients = [
            threading.Thread(target=work, args=(Random(f"{seed} {number}"),), daemon=True)
            for number, work in enumerate(works)
        ]

    def __enter__(self) -> "Soak":
        try:
            for broker in self.brokers:
                broker.start()
            for broker in self.brokers:
                broker.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for client in self._clients:
            if client.is_alive():
                client.join(4 * _TIMEOUT_S)
        for broker in self.brokers:
            broker.stop(signal.SIGKILL)

    @property
    def is_publishing(self) -> bool:
        return self._is_publishing and not self._is_over.is_set()

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def pause(self, seconds: float) -> None:
        self._is_over.wait(seconds)

    # -- disturbances ------------------------------------------------------------------------------

    def disturb(self, choice: str | None = None) -> None:
        """Do one of `DISTURBANCES`, and let the clients work for a while."""
        choice = choice or self._random.choice(DISTURBANCES)
        victim = self._random.choice(self.brokers)
        self.notes.counts[f"disturbances: {choice}"] += 1
        self.history.note_all(f"{choice} {victim.number} begins")
        if choice == "kill":
            victim.stop(signal.SIGKILL)
            self.pause(self._random.uniform(0, 3))
            victim.start()
        elif choice == "restart":
            victim.stop(signal.SIGTERM)
            victim.start()
        elif choice == "database":
            self._server.stop()  # at once: pg_ctl stop -m immediate
            self.pause(self._random.uniform(0, 2))
            self._server.start()
        else:
            victim.signal(signal.SIGSTOP)
            self.pause(self._random.choice(_STOPPED_S))
            victim.signal(signal.SIGCONT)
        for broker in self.brokers:
            broker.wait_ready()
        self.history.note_all(f"{choice} {victim.number} is over")
        self.pause(self._random.uniform(0.5, 4))
        self.check()

    def check(self) -> None:
        """Assert that nothing was wrong so far."""
        if self.notes.wrong:
            self.pause(_REPORT_S)
        reports = [str(path) for path in self.history.reports]
        assert not self.notes.wrong, f"{self.notes.wrong[:10]}; see {reports}"

    # -- the end -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """End the publishers, consume what is left, and end the consumers."""
        self._is_publishing = False
        for client in self._clients[:4]:
            client.join(8 * _TIMEOUT_S)
            assert not client.is_alive(), "a publisher is not answered"
        self._empty.clear()
        left_s = _DRAIN_S
        while any(self._empty[name] * 0.5 < 2 * self.lease_s for name in _QUEUES):
            self.pause(0.5)
            left_s -= 0.5
            assert left_s > 0, f"the queues do not get empty: {self._empty}"
            for name in _QUEUES:
                self._empty[name] += 1
        self._is_over.set()
        for client in self._clients:
            client.join(4 * _TIMEOUT_S)

    def look_into(self, payloads: list[str]) -> None:
        """Write down what is known of messages that are out of order or were delivered again."""
        if len(self.history.reports) >= _MOST_REPORTS:
            return
        ends = list(dict.fromkeys([*payloads[:3], *payloads[-3:]]))
        messages = [(one, self.notes.id_of(one)) for one in ends]
        ports = [broker.port for broker in self.brokers]
        self.history.report(self.notes.wrong[-1], messages, ports)

    def not_empty(self, queue: str) -> None:
        """Note a delivery. A queue is empty if there was none for two times the lease."""
        self._empty[queue] = 0


class _Client:
    """A connection to one of the brokers, or after an error to another one."""

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        self._connection: http.client.HTTPConnection | None = None
        self.broker = -1  # the one it is connected to, or was last

    def ask(self, random: Random, path: str, body: Any) -> Any:
        """Return the answer; None if there is none, or a refusal."""
        try:
            if self._connection is None:
                broker = random.choice(self.soak.brokers)
                self.broker, port = broker.number, broker.port
                self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
            self._connection.request(
                "POST", path, json.dumps(body), {"Content-Type": "application/json"}
            )
            response = self._connection.getresponse()
            text = response.read()
            if response.status < 400:
                return json.loads(text)
            assert response.status in (410, 503, 507), (response.status, text)
            self._failed(path, text)
        except (OSError, http.client.HTTPException) as error:
            self._failed(path, repr(error))
        self.close()
        return None

    def _failed(self, path: str, reason: object) -> None:
        self.soak.notes.failed()
        self.soak.history.note_all(f"{path} at {self.broker} failed: {reason!r:.300}")
        self.soak.pause(0.05)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Publisher:
    """Publishes messages with keys, and without, each until it is answered."""

    def __init__(self, soak: Soak, number: int) -> None:
        self._client = _Client(soak)
        self._number = number

    def work(self, random: Random) -> None:
        soak, counts = self._client.soak, Counter[str]()
        try:
            while soak.is_publishing:
                key = f"key-{self._number}-{random.randrange(_KEYS_EACH)}"
                name = key if random.random() < 0.5 else f"plain-{self._number}"
                queue = _QUEUES[self._number % 3 if name == key else random.randrange(3)]
                payloads = []
                for _ in range(random.choice([1, 1, 5])):
                    payloads.append(f"{name}:{counts[name]}")
                    counts[name] += 1
                self._publish(random, queue, payloads, key if name == key else None)
                soak.pause(_PAUSE_S)
        except AssertionError as error:
            soak.notes.wrong.append(repr(error))
        finally:
            self._client.close()

    def _publish(self, random: Random, queue: str, payloads: list[str], key: str | None) -> None:
        body = [{"payload": one, "dedup_id": one} for one in payloads]
        if key is not None:
            body = [{**one, "key": key} for one in body]
        path = f"/api/v1/namespaces/soak/queues/{queue}/messages"
        again = False
        while not self._client.soak.is_over:
            for payload in payloads:
                self._client.soak.history.note(payload, "is published")
            answer = self._client.ask(random, path, body)
            if answer is not None:
                for payload, one in zip(payloads, answer["messages"], strict=True):
                    self._client.soak.history.note(payload, f"answered by {self._client.broker}")
                    self._client.soak.notes.published(payload, one["id"], again=again)
                return
            for payload in payloads:
                self._client.soak.history.note(payload, f"no answer of {self._client.broker}")
            again = True


class Consumer:
    """Leases messages of any queue, acks most of them, and nacks some."""

    def __init__(self, soak: Soak) -> None:
        self._client = _Client(soak)

    def work(self, random: Random) -> None:
        soak = self._client.soak
        try:
            while not soak.is_over:
                self._take(random, random.choice(_QUEUES))
        except AssertionError as error:
            soak.notes.wrong.append(repr(error))
        finally:
            self._client.close()

    def _take(self, random: Random, queue: str) -> None:
        notes = self._client.soak.notes
        body: dict[str, Any] = {}  # one message, at once: brokers forward such calls together
        if random.random() < 0.7:
            body = {
                "max": random.choice([1, 10]),
                "lease_s": self._client.soak.lease_s,
                "wait_s": random.choice([0, 1]),
            }
        acks_before = notes.leasing()
        answer = self._client.ask(random, f"/api/v1/namespaces/soak/queues/{queue}/lease", body)
        found = (answer or {"messages": []})["messages"]
        for one in found:
            note = f"delivered by {self._client.broker}, attempt {one['attempt']}"
            self._client.soak.history.note(one["payload"], note)
            suspects = notes.delivered(one["payload"], one["id"], acks_before)
            if suspects:
                self._client.soak.look_into(suspects)
            self._client.soak.not_empty(queue)
        for one in found:
            if random.random() < 0.03:
                nack = {"receipt": one["receipt"], "reason": "not now", "delay_s": 0}
                self._client.ask(random, "/api/v1/settle", {"nack": [nack]})
                continue
            notes.asked(one["id"])
            settled = self._client.ask(random, "/api/v1/settle", {"ack": [one["receipt"]]})
            status = "no answer" if settled is None else settled["results"][0]["status"]
            self._client.soak.history.note(
                one["payload"], f"ack at {self._client.broker}: {status}"
            )
            if settled is not None:
                notes.settled(one["id"], status)
        if not found:
            self._client.soak.pause(_PAUSE_S)
