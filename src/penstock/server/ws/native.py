"""WS …/{queue}/stream: the native frames, JSON in both directions.

Server: `message`, `settled` (the answer to an ack, nack or extend), `error`.
Client: `ack`, `nack`, `extend`, `credit`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.broker import Outcome, Settlement, Verb, check_name
from penstock.broker.access import INSIDE
from penstock.broker.consumers import MOST_CREDIT, Consumer, check_credit
from penstock.errors import NoSuchGroup, NoSuchQueue, PenstockError
from penstock.model import MAIN_GROUP_NAME, LeasedMessage
from penstock.operations import ListGroups
from penstock.server import strict_json
from penstock.server.call import encode
from penstock.server.problems import problem_of
from penstock.server.rest.endpoint import QUEUE
from penstock.server.rest.message_out import PAYLOADS, leased
from penstock.server.rest.query import Query
from penstock.server.rest.structs import Receipt
from penstock.server.routes import Route
from penstock.server.ws.protocol import METHOD, WebSocketProtocol
from penstock.server.ws.stream import Settling, Stream

USUAL_CREDIT = 10
PARAMETERS = frozenset({"group", "credit", "lease_s", "payload"})


class Ack(Struct, tag="ack", forbid_unknown_fields=True):
    receipt: Receipt


class Nack(Struct, tag="nack", forbid_unknown_fields=True):
    receipt: Receipt
    reason: Annotated[str, Meta(max_length=4096)] = ""
    delay_s: Annotated[float, Meta(ge=0)] | None = None
    dead: bool = False


class Extend(Struct, tag="extend", forbid_unknown_fields=True):
    receipt: Receipt
    lease_s: Annotated[float, Meta(gt=0)]


class Credit(Struct, tag="credit", forbid_unknown_fields=True):
    credit: int


class Settled(Struct, tag="settled", omit_defaults=True):
    receipt: str
    status: str
    detail: str = ""


class Error(Struct, tag="error", omit_defaults=True):
    code: str
    detail: str
    retry_after_s: float | UnsetType = UNSET


CLIENT_FRAMES = msgspec.json.Decoder(Ack | Nack | Extend | Credit)


class NativeFrames:
    """The native dialect."""

    def __init__(self, *, b64: bool) -> None:
        self._b64 = b64

    def message(self, one: LeasedMessage) -> str:
        # The answer of a lease, with its type before the rest.
        return '{"type":"message",' + encode(leased(one, b64=self._b64))[1:].decode()

    def handle(self, consumer: Consumer, text: str) -> Settling | None:
        frame = strict_json.decode(text.encode("utf-8", "surrogatepass"), CLIENT_FRAMES)
        if isinstance(frame, Credit):
            consumer.set_credit(frame.credit)
            return None
        return Settling(consumer.settle([_settlement(frame)]), _settled)

    def error(self, error: PenstockError) -> str:
        problem = problem_of(error)
        after_s: Any = getattr(error, "retry_after_s", UNSET)
        return encode(Error(problem.code, problem.detail, after_s)).decode()


def _settlement(frame: Ack | Nack | Extend) -> Settlement:
    if isinstance(frame, Ack):
        return Settlement("ack", frame.receipt)
    if isinstance(frame, Nack):
        receipt, reason, delay_s = frame.receipt, frame.reason, frame.delay_s
        return Settlement("nack", receipt, reason=reason, delay_s=delay_s, dead=frame.dead)
    return Settlement("extend", frame.receipt, lease_s=frame.lease_s)


def _settled(outcome: Outcome) -> str:
    return encode(Settled(outcome.receipt, outcome.status, outcome.detail)).decode()


async def open_stream(websocket: WebSocketProtocol) -> Stream:
    """Push a group's messages while the client has credit."""
    broker, caller, queue = websocket.service.broker, websocket.caller, websocket.target.queue()
    query = Query(websocket.query_string, PARAMETERS)
    group = check_name("group", query.text("group") or MAIN_GROUP_NAME)
    credit = query.whole("credit", 0, MOST_CREDIT)
    b64 = query.choice("payload", PAYLOADS) == "b64"
    broker.admit(caller, Verb.CONSUME, queue.namespace)
    if not broker.has_queue(queue):
        if not broker.settings.create_on_use:
            raise NoSuchQueue(f"there is no queue {queue}: create it first")
    elif group not in await broker.run(INSIDE, ListGroups(), queue):
        raise NoSuchGroup(f"there is no group {group!r} of queue {queue}: create it first")
    consumer = Consumer(
        broker,
        caller,
        queue,
        credit=check_credit(USUAL_CREDIT if credit is None else credit),
        group=group,
        lease_s=query.number("lease_s"),
        holder=f"websocket:{caller.client}",
    )
    return Stream(websocket, consumer, NativeFrames(b64=b64))


ROUTES = (Route(METHOD, QUEUE + "/stream", open_stream),)
