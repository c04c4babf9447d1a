"""Messages that come after messages of other queues: what a queue tells about its own, and learns
about the others. `broker/following.py` carries the news from one queue to the other."""

from penstock import codec
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.operations.following import (
    AwaitEnding,
    Ending,
    GetEndings,
    ListAwaited,
    OpenGate,
    Resolve,
)
from penstock.queue.after import id_bytes, id_text
from penstock.queue.behaviours import Behaviours
from penstock.queue.core import QueueCore
from penstock.queue.decisions import about, decide_resolved
from penstock.queue.delivery import State
from penstock.queue.events import EventType, Outcome
from penstock.queue.gate import is_gate


def get_endings(queue: Behaviours, operation: GetEndings) -> list[Ending]:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        return [_ending(core, id_, check=operation.check) for id_ in operation.ids]


def _ending(core: QueueCore, id_: str, *, check: bool) -> Ending:
    milliseconds, identity, seq = codec.parse_id(id_)
    main = core.main
    is_there = 0 < seq < core.ledger.messages.next_seq
    if identity != core.identity or (check and not is_there):
        raise NoSuchMessage(f"after names {id_}, which was never published")
    if not is_there:  # it was, or it would not be named: the power failed before it was on disk
        return Ending(id_, Outcome.GONE, "lost")
    if check:
        core.check_published(id_, seq, milliseconds)
    if not main.is_settled(seq):
        delivery = main.deliveries.get(seq)
        is_dead = delivery is not None and delivery.cause > 0
        return Ending(id_, Outcome.DEAD if is_dead else Outcome.WAITING, "dead" if is_dead else "")
    how = main.gone.how(seq)
    if how:
        return Ending(id_, Outcome.GONE, how)
    return Ending(id_, Outcome.DONE, "forgotten" if main.gone.may_have_forgotten(seq) else "")


def await_ending(queue: Behaviours, operation: AwaitEnding) -> bool:
    """Return whether a message has ended. Those who can wait call this again."""
    core = queue.core
    _, identity, seq = codec.parse_id(operation.id)
    with core.lock, core.change:
        core.tick()
        if identity != core.identity or not 0 < seq < core.ledger.messages.next_seq:
            raise NoSuchMessage(f"message {operation.id} was never published to this queue")
        delivery = core.main.deliveries.get(seq)
        return core.main.is_settled(seq) or (delivery is not None and delivery.state is State.DEAD)


def list_awaited(queue: Behaviours, operation: ListAwaited) -> list[Ending]:
    core = queue.core
    with core.lock, core.change:
        core.catch_up()
        dependencies = core.main.dependencies
        return [
            Ending(
                id_text(earlier),
                Outcome.WAITING if dependencies.unaware(earlier, Outcome.DEAD) else Outcome.DEAD,
            )
            for earlier in dependencies.elsewhere
        ]


def resolve(queue: Behaviours, operation: Resolve) -> bool:
    core = queue.core
    earlier, outcome = id_bytes(operation.earlier), Outcome(operation.outcome)
    with core.lock, core.change:
        core.tick()
        events = decide_resolved(core.main, earlier, outcome, operation.how)
        core.record(events)
        return bool(events)


def open_gate(queue: Behaviours, operation: OpenGate) -> bool:
    core, entry = queue.core, queue.inspecting.entry(operation.id)
    if not is_gate(entry.headers):
        raise InvalidInput(f"message {operation.id} is no gate, so it cannot be opened")
    with core.lock, core.change:
        now_ns = core.tick()
        main, seq = core.main, entry.seq
        if main.is_settled(seq):
            return main.gone.how(seq) is None
        if entry.expires_at_ns and entry.expires_at_ns <= now_ns:
            return False  # a consumer that comes to it records that
        core.record([about(EventType.ACKED, main, [seq])])
        return True
