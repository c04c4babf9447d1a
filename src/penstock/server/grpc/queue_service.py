"""The methods of `penstock.v1.QueueService`. See also `leasing.py` and `consuming.py`."""

from typing import Any

from penstock.broker import SETTING_TYPES, QueueInfo, QueueName, check_name
from penstock.errors import InvalidInput
from penstock.operations import Browse, ListDead, Operation, Redrive
from penstock.protobuf.descriptors import METHODS, Proto, message_class
from penstock.protobuf.messages import new_messages
from penstock.protobuf.operations import OPERATIONS, fill_answer, is_of_message, operation_of
from penstock.protobuf.records import as_dict
from penstock.server.creating import create_or_match
from penstock.server.grpc.call import GrpcCall, Shared, Unary, queue_of, streaming, unary
from penstock.server.grpc.consuming import consume
from penstock.server.grpc.leasing import first_rows, lease, settle

MOST_QUEUES = 1000  # of a page
_PublishResponse = message_class("PublishResponse")


async def publish(call: GrpcCall, request: Proto) -> Proto:
    """Publish messages, all or none."""
    messages = new_messages(request.messages)
    published = await call.broker.publish(call.caller, queue_of(request), messages)
    response = _PublishResponse()
    add = response.messages.add
    for id_, is_duplicate in published:
        add(id=id_, duplicate=is_duplicate)
    return response


# -- operations ------------------------------------------------------------------------------------


def operation_method(kind: type[Operation[Any]]) -> Unary:
    """Return the method that runs an operation."""
    response_of = METHODS[kind.__name__].response

    async def run(call: GrpcCall, request: Proto) -> Proto:
        operation = operation_of(kind, request)
        queue = None if is_of_message(kind) else queue_of(request)
        found = await call.broker.run(call.caller, operation, queue)
        response = response_of()
        fill_answer(kind, response, _shortened(operation, found))
        return response

    return run


def _shortened(operation: Operation[Any], found: Any) -> Any:
    """Return a page without the rows that clients could not receive. The next page has them."""
    if isinstance(operation, Browse):
        rows = first_rows(found.rows)
        if len(rows) < len(found.rows):
            return found._replace(rows=rows, next_seq=rows[-1].message.seq)
    elif isinstance(operation, ListDead):
        letters = first_rows(found.letters)
        if len(letters) < len(found.letters):
            return found._replace(letters=letters, next_seq=letters[-1].message.seq)
    return found


async def redrive(call: GrpcCall, request: Proto) -> Proto:
    """Make dead letters ready again; with `max_rate` in the background."""
    if not request.HasField("max_rate") or request.dry_run:
        return await operation_method(Redrive)(call, request)
    operation: Any = operation_of(Redrive, request)
    redrives = call.broker.redrives
    found = await redrives.start(call.caller, queue_of(request), operation, request.max_rate)
    return METHODS["Redrive"].response(redriven=found)


# -- queues ----------------------------------------------------------------------------------------


async def list_queues(call: GrpcCall, request: Proto) -> Proto:
    """List the queues that the key may read, by name."""
    namespace = None
    if request.HasField("namespace"):
        namespace = check_name("namespace", request.namespace)
    limit = request.limit if request.HasField("limit") else MOST_QUEUES
    if not 1 <= limit <= MOST_QUEUES:
        raise InvalidInput(f"limit is {limit}; it must be 1 to {MOST_QUEUES}")
    found = sorted(call.broker.queues(call.caller, namespace))
    if request.after:
        after = QueueName.parse(request.after)
        found = [one for one in found if one > after]
    response = METHODS["ListQueues"].response()
    for one in found[:limit]:
        response.queues.add(namespace=one.namespace, queue=one.name)
    if len(found) > limit:
        response.next_after = str(found[limit - 1])
    return response


async def get_queue(call: GrpcCall, request: Proto) -> Proto:
    """Show a queue and its settings."""
    return _queue(await call.broker.queue_info(call.caller, queue_of(request)))


async def create_queue(call: GrpcCall, request: Proto) -> Proto:
    """Create a queue. One that exists with these settings is not changed."""
    queue, settings = queue_of(request), _settings(request)
    info, _ = await create_or_match(call.broker, call.caller, queue, settings)
    return _queue(info)


async def change_queue(call: GrpcCall, request: Proto) -> Proto:
    """Change some settings of a queue."""
    queue, settings = queue_of(request), _settings(request)
    return _queue(await call.broker.change_queue(call.caller, queue, settings))


async def delete_queue(call: GrpcCall, request: Proto) -> Proto:
    """Delete a queue and its messages."""
    await call.broker.delete_queue(call.caller, queue_of(request))
    return METHODS["DeleteQueue"].response()


async def get_rate_limit(call: GrpcCall, request: Proto) -> Proto:
    """Show the rate limit of publishing."""
    return _rate_limit(await call.broker.queue_info(call.caller, queue_of(request)))


async def set_rate_limit(call: GrpcCall, request: Proto) -> Proto:
    """Set the rate limit of publishing."""
    changes = {"rate_per_s": request.refill_per_s, "rate_burst": request.capacity}
    return _rate_limit(await call.broker.change_queue(call.caller, queue_of(request), changes))


def _settings(request: Proto) -> dict[str, Any]:
    """Return the settings that a request names. A Struct has no integers, so whole numbers of a
    setting that is not whole become floats again."""
    found = as_dict(request.settings)
    return {
        name: float(value) if type(value) is int and SETTING_TYPES.get(name) is float else value
        for name, value in found.items()
    }


def _queue(info: QueueInfo) -> Proto:
    response = METHODS["GetQueue"].response(
        namespace=info.queue.namespace, queue=info.queue.name, created_ns=info.created_at_ns
    )
    response.settings.update(
        {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in info.settings.as_dict().items()
        }
    )
    return response


def _rate_limit(info: QueueInfo) -> Proto:
    settings = info.settings
    return METHODS["GetRateLimit"].response(
        refill_per_s=settings.rate_per_s, capacity=settings.rate_burst
    )


# -- the service -----------------------------------------------------------------------------------

_UNARY: dict[str, Unary] = {
    **{name: operation_method(kind) for name, kind in OPERATIONS.items()},
    "Publish": publish,
    "Settle": settle,
    "Redrive": redrive,
    "ListQueues": list_queues,
    "GetQueue": get_queue,
    "CreateQueue": create_queue,
    "ChangeQueue": change_queue,
    "DeleteQueue": delete_queue,
    "GetRateLimit": get_rate_limit,
    "SetRateLimit": set_rate_limit,
}


def handlers(shared: Shared) -> dict[str, Any]:
    """Return the handlers of all methods by their paths."""
    found = {
        METHODS[name].path: unary(shared, METHODS[name], work) for name, work in _UNARY.items()
    }
    for name, work in (("Lease", lease), ("Consume", consume)):
        found[METHODS[name].path] = streaming(shared, METHODS[name], work)
    return found
