"""The table of all calls of SQS, and the way from a request to its answer."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.broker import Broker, Caller
from penstock.server.call import Call
from penstock.server.replies import Reply
from penstock.server.routes import Route
from penstock.server.sqs import bodies, moving, queues, receiving, sending, settling
from penstock.server.sqs.errors import SqsError, sqs_error_of
from penstock.server.sqs.records import Records
from penstock.server.sqs.request import Request, admit, error_reply, known_caller, reader

# A message of 1 MiB as JSON, where a character may take six bytes, and what belongs to it.
MAX_BODY_BYTES = 8 << 20
_TARGET = b"AmazonSQS."


class Action(NamedTuple):
    """A call: how its body is read, and what runs it."""

    read: Callable[[bytes], Any]
    run: Callable[[Request, Any], Any]


async def _no_permissions(request: Request, _: Any) -> Reply:
    raise SqsError(
        "UnsupportedOperation",
        "This server has no queue policies: the verbs and namespaces of an API key say what its "
        "holder may do.",
    )


_TABLE: Sequence[tuple[str, Any, Any]] = [
    ("AddPermission", bodies.Anything, _no_permissions),
    ("CancelMessageMoveTask", bodies.CancelMessageMoveTask, moving.cancel_message_move_task),
    (
        "ChangeMessageVisibility",
        bodies.ChangeMessageVisibility,
        settling.change_message_visibility,
    ),
    (
        "ChangeMessageVisibilityBatch",
        bodies.ChangeMessageVisibilityBatch,
        settling.change_message_visibility_batch,
    ),
    ("CreateQueue", bodies.CreateQueue, queues.create_queue),
    ("DeleteMessage", bodies.DeleteMessage, settling.delete_message),
    ("DeleteMessageBatch", bodies.DeleteMessageBatch, settling.delete_message_batch),
    ("DeleteQueue", bodies.OfQueue, queues.delete_queue),
    ("GetQueueAttributes", bodies.GetQueueAttributes, queues.get_queue_attributes),
    ("GetQueueUrl", bodies.GetQueueUrl, queues.get_queue_url),
    (
        "ListDeadLetterSourceQueues",
        bodies.ListDeadLetterSourceQueues,
        queues.list_dead_letter_source_queues,
    ),
    ("ListMessageMoveTasks", bodies.ListMessageMoveTasks, moving.list_message_move_tasks),
    ("ListQueues", bodies.ListQueues, queues.list_queues),
    ("ListQueueTags", bodies.OfQueue, queues.list_queue_tags),
    ("PurgeQueue", bodies.OfQueue, queues.purge_queue),
    ("ReceiveMessage", bodies.ReceiveMessage, receiving.receive_message),
    ("RemovePermission", bodies.Anything, _no_permissions),
    ("SendMessage", bodies.SendMessage, sending.send_message),
    ("SendMessageBatch", bodies.SendMessageBatch, sending.send_message_batch),
    ("SetQueueAttributes", bodies.SetQueueAttributes, queues.set_queue_attributes),
    ("StartMessageMoveTask", bodies.StartMessageMoveTask, moving.start_message_move_task),
    ("TagQueue", bodies.TagQueue, queues.tag_queue),
    ("UntagQueue", bodies.UntagQueue, queues.untag_queue),
]
ACTIONS: Mapping[str, Action] = {name: Action(reader(kind), run) for name, kind, run in _TABLE}


class Sqs:
    """The interface of one server: its routes, records and counts."""

    def __init__(self, broker: Broker) -> None:
        self._records = Records(broker)
        self._calls: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self.route = self._route("/")
        broker.metrics.registry.register(self)

    def own_routes(self) -> list[Route]:
        """Return the routes of an address that serves SQS only. Some clients call queue URLs."""
        return [self.route, self._route("/{account}/{queue}")]

    def _route(self, path: str) -> Route:
        return Route("POST", path, self.handle, needs_key=False, error_reply=self._failed)

    def handle(self, call: Call) -> Any:
        """Find the action of a request, and run it for its caller."""
        name = _action_of(call)
        action = ACTIONS[name]
        self._calls[name] += 1
        if call.size > MAX_BODY_BYTES:
            raise SqsError(
                "RequestEntityTooLargeException",
                f"The body has {call.size} bytes; the maximum is {MAX_BODY_BYTES}.",
                413,
            )
        caller = known_caller(call)
        if caller is None or not self._records.is_current:
            return self._admit_and_run(call, action)
        return self._run(call, action, caller)

    async def _admit_and_run(self, call: Call, action: Action) -> Any:
        caller = await admit(call)
        await self._records.load()
        return self._run(call, action, caller)

    def _run(self, call: Call, action: Action, caller: Caller) -> Any:
        call.caller = caller
        return call.with_body(action.read, partial(self._answer, action, caller))

    def _answer(self, action: Action, caller: Caller, call: Call, body: Any) -> Any:
        return action.run(Request(call, caller, self._records), body)

    def _failed(self, call: Call, error: BaseException) -> Reply:
        known = sqs_error_of(error)
        self._errors[known.code] += 1
        return error_reply(call, known)

    def collect(self) -> Iterable[Metric]:
        """Return the series, for the registry."""
        return series(self._calls, self._errors)


def series(calls: Mapping[str, int], errors: Mapping[str, int]) -> list[Metric]:
    """Return the series of the interface."""
    received = CounterMetricFamily("penstock_sqs_calls", "Calls of SQS.", labels=["action"])
    for name, count in sorted(calls.items()):
        received.add_metric([name], count)
    failed = CounterMetricFamily(
        "penstock_sqs_errors", "Calls of SQS that failed, by the code.", labels=["code"]
    )
    for code, count in sorted(errors.items()):
        failed.add_metric([code], count)
    return [received, failed]


def _action_of(call: Call) -> str:
    target = call.headers.get(b"x-amz-target", b"")
    name = target.removeprefix(_TARGET).decode("latin-1")
    if target.startswith(_TARGET) and name in ACTIONS:
        return name
    if target:
        raise SqsError("UnknownOperationException", f"There is no call {name[:100]!r}.", 404)
    raise SqsError(
        "UnknownOperationException",
        "This is the JSON protocol of SQS: the header X-Amz-Target names the call. The older query "
        "protocol, with a parameter Action, is not supported: use an SDK of 2024 or later.",
        404,
    )
