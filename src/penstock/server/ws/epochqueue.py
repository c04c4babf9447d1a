"""WS …/{queue}/ws: EpochQueue's frames.

Server: `message`, and `error` where a frame of the client settled nothing. Client: `ack`, `nack`.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from penstock.broker import Outcome, QueueName, Settlement, Verb
from penstock.broker.consumers import Consumer
from penstock.errors import PenstockError
from penstock.model import LeasedMessage
from penstock.server.dialects.epochqueue_catalogue import QUEUE, ensure_queue
from penstock.server.dialects.json_bodies import Shape
from penstock.server.off_loop import to_base64
from penstock.server.problems import problem_of
from penstock.server.routes import Route
from penstock.server.ws.protocol import METHOD, WebSocketProtocol
from penstock.server.ws.stream import Settling, Stream

CREDIT = 10  # its clients cannot say how many they want at a time


class ClientFrame(Struct):
    type: Literal["ack", "nack"]
    receipt_handle: str


_client_frame = Shape(ClientFrame)


class EpochQueueFrames:
    """EpochQueue's dialect."""

    def __init__(self, queue: QueueName) -> None:
        self._queue = queue

    def message(self, leased: LeasedMessage) -> str:
        message = leased.message
        return _encoded(
            {
                "type": "message",
                "id": message.id,
                "body": to_base64(message.payload).decode(),
                "receipt_handle": leased.receipt,
                "namespace": self._queue.namespace,
                "queue": self._queue.name,
                "published_at": message.published_ns // 1_000_000,
            }
        )

    def handle(self, consumer: Consumer, text: str) -> Settling:
        frame = _client_frame.read(text.encode("utf-8", "surrogatepass"))
        if frame.type == "ack":
            settlement = Settlement("ack", frame.receipt_handle)
        else:
            settlement = Settlement("nack", frame.receipt_handle, delay_s=0.0)
        return Settling(consumer.settle([settlement]), _settled)

    def error(self, error: PenstockError) -> str:
        return _encoded({"type": "error", "error": problem_of(error).detail})


def _settled(outcome: Outcome) -> str | None:
    if outcome.status == "done":  # one that was acked before settles nothing
        return None
    return _encoded({"type": "error", "error": outcome.detail, "receipt_handle": outcome.receipt})


def _encoded(frame: dict[str, object]) -> str:
    return msgspec.json.encode(frame).decode()


async def open_stream(websocket: WebSocketProtocol) -> Stream:
    """Push a queue's messages."""
    broker, caller, queue = websocket.service.broker, websocket.caller, websocket.target.queue()
    broker.admit(caller, Verb.CONSUME, queue.namespace)
    await ensure_queue(broker, caller, Verb.CONSUME, queue)
    holder = f"websocket:{caller.client}"
    consumer = Consumer(broker, caller, queue, credit=CREDIT, holder=holder)
    return Stream(websocket, consumer, EpochQueueFrames(queue))


ROUTES = (Route(METHOD, QUEUE + "/ws", open_stream),)
