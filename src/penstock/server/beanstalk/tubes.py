"""The tubes that connections refer to, and the numbers that tubes have in job ids.

A tube is a queue of one namespace. It is created by the first put or waiting reserve, with the
settings of beanstalkd: no limit of attempts, no backoff, strict priorities. A tube that is only
used or watched exists as long as a connection refers to it, and has no queue.
"""

import asyncio
from collections.abc import Callable

import msgspec

from penstock.broker import Broker, Caller, QueueName
from penstock.broker.store import update_document
from penstock.codec import make_id
from penstock.errors import AlreadyExists, NoSuchMessage, QuotaExceeded
from penstock.server.beanstalk.mapping import (
    DEFAULT_TTR_S,
    DEFAULT_TUBE,
    MAX_SEQ,
    MAX_TUBES,
    job_id,
    queue_of,
    split_id,
    tube_of,
)

SETTINGS = {
    "max_attempts": 65535,
    "backoff_base_s": 0.0,
    "starvation_after_s": 0.0,
    "default_priority": 5,
    "default_ttl_s": 0.0,
    "lease_s": float(DEFAULT_TTR_S),
}
_DOCUMENT = "beanstalk.json"


class _Numbers(msgspec.Struct):
    """The document: identities of queues. A queue's number is its place in the list."""

    identities: list[int]


class Tube:
    """A tube that some connection refers to, or that was used a while ago."""

    __slots__ = (
        "base",
        "cmd_delete",
        "cmd_pause",
        "identity",
        "name",
        "pause_s",
        "paused_until",
        "queue",
        "ttr_s",
        "using",
        "waiting",
        "watching",
    )

    def __init__(self, name: str, queue: QueueName) -> None:
        self.name = name
        self.queue = queue
        self.identity = -1  # of its queue, as last seen
        self.base = 0  # job ids of that queue start here
        self.ttr_s = DEFAULT_TTR_S  # of the last job: most jobs of a tube have the same
        self.using = self.watching = self.waiting = 0  # connections
        self.pause_s = 0
        self.paused_until = 0.0  # in the loop's time
        self.cmd_delete = self.cmd_pause = 0  # commands so far

    @property
    def is_referred_to(self) -> bool:
        return bool(self.using or self.watching or self.paused_until)


class Tubes:
    """All tubes of a listener."""

    def __init__(self, broker: Broker, namespace: str, caller: Caller) -> None:
        self._broker = broker
        self._namespace = namespace
        self._caller = caller  # the listener itself
        self._tubes: dict[str, Tube] = {}  # those that are referred to
        self._identities: list[int] = []
        self._numbers: dict[int, int] = {}  # by identity
        self.on_pause: list[Callable[[Tube], None]] = []  # called when a pause begins or ends

    async def load(self) -> None:
        """Read the numbers on record."""
        self._take(await self._broker.store.load_document(_DOCUMENT))

    # -- names -------------------------------------------------------------------------------------

    def get(self, name: str) -> Tube | None:
        """Return a tube; None if there can be no queue for it."""
        tube = self._tubes.get(name)
        if tube is None:
            queue = queue_of(self._namespace, name)
            if queue is not None:
                tube = self._tubes[name] = Tube(name, queue)
        return tube

    def default(self) -> Tube:
        """Return the tube that a new connection uses and watches."""
        tube = self.get(DEFAULT_TUBE)
        assert tube is not None, "it is a name of a queue"
        return tube

    def referred_to(self, queue: QueueName) -> Tube | None:
        """Return the tube of a queue if some connection refers to it."""
        name = tube_of(queue.name)
        return None if name is None else self._tubes.get(name)

    def dropped(self, tube: Tube) -> None:
        """Forget a tube if no connection refers to it any more."""
        if not tube.is_referred_to:
            self._tubes.pop(tube.name, None)

    def exists(self, tube: Tube) -> bool:
        return tube.is_referred_to or self._broker.has_queue(tube.queue)

    def names(self) -> list[str]:
        """Return the names of all tubes: those that have a queue, or are referred to."""
        found = {name for name, tube in self._tubes.items() if tube.is_referred_to}
        for queue in self.queues():
            tube = tube_of(queue.name)
            if tube is not None:
                found.add(tube)
        return sorted(found)

    def queues(self) -> list[QueueName]:
        """Return the queues of the namespace, which may not exist yet."""
        every = self._broker.queues(self._caller)
        return [queue for queue in every if queue.namespace == self._namespace]

    def has_queue(self, tube: Tube) -> bool:
        return self._broker.has_queue(tube.queue)

    async def create(self, tube: Tube) -> None:
        """Create the queue of a tube unless it exists, or creating by use is not allowed."""
        if self._broker.settings.create_on_use and not self.has_queue(tube):
            try:
                await self._broker.create_queue(self._caller, tube.queue, SETTINGS)
            except AlreadyExists:
                pass

    # -- job ids -----------------------------------------------------------------------------------

    def learn(self, tube: Tube, identity: int) -> bool:
        """Set the base of a tube's job ids. Return False if its queue has no number yet."""
        number = self._numbers.get(identity)
        if number is None:
            return False
        tube.identity, tube.base = identity, job_id(number, 0)
        return True

    async def add_number(self, identity: int) -> None:
        """Give a queue a number, on record: another broker may have done so in the meantime."""

        def add(old: bytes | None) -> bytes:
            known = _read(old)
            if identity not in known:
                if len(known) >= MAX_TUBES:
                    raise QuotaExceeded(
                        f"job ids have room for {MAX_TUBES} tubes, and all are used"
                    )
                known = [*known, identity]
            return msgspec.json.encode(_Numbers(known))

        self._take(await update_document(self._broker.store, _DOCUMENT, add))

    def _take(self, document: bytes | None) -> None:
        self._identities = _read(document)
        self._numbers = {identity: number for number, identity in enumerate(self._identities)}

    async def job_id(self, tube: Tube, identity: int, seq: int) -> int:
        """Return the id of a job. Its queue gets a number if it has none."""
        if seq > MAX_SEQ:
            raise QuotaExceeded(f"the job ids of tube {tube.name} are used up: use another tube")
        if identity != tube.identity and not self.learn(tube, identity):
            await self.add_number(identity)
            self.learn(tube, identity)
        return tube.base | seq

    async def find(self, id: int) -> tuple[Tube, int] | None:
        """Return the tube and the seq of a job id; None if there is no such tube."""
        number, seq = split_id(id)
        if number >= len(self._identities) and number < MAX_TUBES:
            await self.load()  # another broker may have added it
        if not seq or number >= len(self._identities):
            return None
        identity = self._identities[number]
        try:
            queue = await self._broker.queue_of_message(make_id(0, identity, seq))
        except NoSuchMessage:
            return None
        name = tube_of(queue.name) if queue.namespace == self._namespace else None
        if name is None:
            return None
        tube = self._tubes.get(name) or Tube(name, queue)
        self.learn(tube, identity)
        return tube, seq

    # -- pauses ------------------------------------------------------------------------------------

    def pause(self, tube: Tube, seconds: int) -> None:
        """Let no connection of this broker reserve a job of the tube for a time."""
        loop = asyncio.get_running_loop()
        self._tubes[tube.name] = tube
        tube.pause_s = seconds
        tube.paused_until = until = loop.time() + seconds
        loop.call_at(until, self._resume, tube, until)
        self._tell(tube)

    def _resume(self, tube: Tube, until: float) -> None:
        if tube.paused_until == until:  # else it was paused again
            tube.paused_until, tube.pause_s = 0.0, 0
            self._tell(tube)
            self.dropped(tube)

    def _tell(self, tube: Tube) -> None:
        for listener in list(self.on_pause):
            listener(tube)


def _read(document: bytes | None) -> list[int]:
    return [] if document is None else msgspec.json.decode(document, type=_Numbers).identities
