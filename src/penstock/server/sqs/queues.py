"""The calls about queues: create, delete, find, list, purge; attributes and tags."""

from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.broker import QueueName, Verb
from penstock.broker.store import QueueInfo
from penstock.errors import AlreadyExists, NoSuchNamespace
from penstock.operations import Purge
from penstock.server.replies import Reply
from penstock.server.sqs import bodies, dead_letters
from penstock.server.sqs.attributes import (
    NAMES,
    Change,
    allows_source,
    attributes_of,
    invalid_attribute,
    is_same,
    needs_counts,
    new_queue_settings,
    read_attributes,
    shown_counts,
)
from penstock.server.sqs.errors import SqsError, invalid_value
from penstock.server.sqs.names import check_new_name, existing_name, is_fifo
from penstock.server.sqs.request import Request

MAX_RESULTS = 1000
MAX_TAGS = 50
MAX_TAG_KEY, MAX_TAG_VALUE = 128, 256  # characters


# -- creating and deleting -------------------------------------------------------------------------


async def create_queue(request: Request, body: bodies.CreateQueue) -> Reply:
    """Create a queue. Return the existing one if it has the same attributes."""
    queue = check_new_name(request.namespace, body.QueueName)
    given = body.Attributes or {}
    change = read_attributes(queue, given)
    if is_fifo(queue) and given.get("FifoQueue") != "true":
        raise invalid_value("QueueName", queue.name, "a name that ends with .fifo needs FifoQueue.")
    tags = body.tags or {}
    _check_tags(tags)
    request.broker.admit(request.caller, Verb.MANAGE, queue.namespace)
    async with request.records.turn:
        if request.broker.has_queue(queue):
            await _check_same(request, queue, given)
        else:
            await _check_dead_queue(request, queue, change)
            try:
                await _create(request, queue, change, tags)
            except AlreadyExists:
                await _check_same(request, queue, given)
    return request.reply({"QueueUrl": request.url(queue)})


async def _create(
    request: Request, queue: QueueName, change: Change, tags: Mapping[str, str]
) -> None:
    settings = {**new_queue_settings(), **change.settings}
    settings.update(await _dead_retention(request, queue, change))
    made = await request.broker.create_queue(request.caller, queue, settings)
    fields = {**change.record, **({"tags": dict(tags)} if tags else {})}
    if not fields:
        return
    try:
        await request.records.change(queue, made.identity, fields)
    except BaseException:
        await request.broker.delete_queue(request.caller, queue)
        raise


async def _check_same(request: Request, queue: QueueName, given: Mapping[str, str]) -> None:
    info = await request.broker.store.info(queue)
    found = attributes_of(info, request.record(queue), request.region)
    for name, value in given.items():
        if not is_same(name, value, found):
            raise SqsError(
                "QueueNameExists",
                f"A queue already exists with the same name and a different value for attribute "
                f"{name}",
            )


async def _check_dead_queue(request: Request, queue: QueueName, change: Change) -> None:
    """Raise an error if the dead-letter queue does not exist, or does not allow this source."""
    name = change.record.get("dead_queue")
    if not name:
        return
    target = QueueName(queue.namespace, name)
    try:
        await request.check_exists(target)
    except SqsError:
        raise invalid_value("RedrivePolicy", name, "Dead letter target does not exist.") from None
    if not allows_source(request.record(target), queue):
        raise invalid_value(
            "RedrivePolicy",
            name,
            "Queue does not have permissions to use it as a dead-letter queue.",
        )


async def _dead_retention(request: Request, queue: QueueName, change: Change) -> dict[str, Any]:
    """Return how long dead letters stay: as long as the dead-letter queue keeps messages."""
    name = change.record.get("dead_queue")
    if name is None:
        return {}
    if not name:
        return {"dead_retention_s": 0.0}
    info = await request.broker.store.info(QueueName(queue.namespace, name))
    return {"dead_retention_s": info.settings.default_ttl_s}


async def delete_queue(request: Request, body: bodies.OfQueue) -> Reply:
    queue = await request.queue(body.QueueUrl)
    await request.broker.delete_queue(request.caller, queue)
    return request.reply({})


async def purge_queue(request: Request, body: bodies.OfQueue) -> Reply:
    """Remove all messages: waiting, delayed and in flight, and dead letters that it shows."""
    queue = await request.queue(body.QueueUrl)
    broker, caller = request.broker, request.caller
    await broker.run(caller, Purge(), queue)
    await broker.cancel_deliverable(caller, queue)
    await dead_letters.discard(request, request.records.sources(queue))
    return request.reply({})


# -- finding ---------------------------------------------------------------------------------------


async def get_queue_url(request: Request, body: bodies.GetQueueUrl) -> Reply:
    namespace = body.QueueOwnerAWSAccountId or request.namespace
    queue = await request.check_exists(existing_name(namespace, body.QueueName))
    request.broker.admit(request.caller, Verb.READ, queue.namespace)
    return request.reply({"QueueUrl": request.url(queue)})


async def list_queues(request: Request, body: bodies.ListQueues) -> Reply:
    try:
        found = request.broker.queues(request.caller, request.namespace)
    except NoSuchNamespace:
        found = []
    prefix = body.QueueNamePrefix or ""
    queues = [queue for queue in found if queue.name.startswith(prefix)]
    return _page(request, "QueueUrls", queues, body)


async def list_dead_letter_source_queues(
    request: Request, body: bodies.ListDeadLetterSourceQueues
) -> Reply:
    queue = await request.queue(body.QueueUrl)
    request.broker.admit(request.caller, Verb.READ, queue.namespace)
    return _page(request, "queueUrls", request.records.sources(queue), body)


def _page(
    request: Request,
    field: str,
    queues: Sequence[QueueName],
    body: bodies.ListQueues | bodies.ListDeadLetterSourceQueues,
) -> Reply:
    """Answer with a page of URLs. A client that names no size gets one page, without a token."""
    limit = body.MaxResults
    if limit is not None and not 1 <= limit <= MAX_RESULTS:
        raise invalid_value("MaxResults", limit, f"MaxResults must be 1 to {MAX_RESULTS}.")
    if body.NextToken:
        after = _name_in(body.NextToken)
        queues = [queue for queue in queues if queue.name > after]
    shown = queues[: limit or MAX_RESULTS]
    answer: dict[str, Any] = {field: [request.url(queue) for queue in shown]}
    if limit is not None and len(queues) > limit:
        answer["NextToken"] = _token_of(shown[-1].name)
    return request.reply(answer)


def _token_of(name: str) -> str:
    return b2a_base64(name.encode(), newline=False).decode()


def _name_in(token: str) -> str:
    try:
        return a2b_base64(token, strict_mode=True).decode()
    except ValueError:
        raise invalid_value("NextToken", token[:100], "Invalid or expired next token.") from None


# -- attributes ------------------------------------------------------------------------------------


async def get_queue_attributes(request: Request, body: bodies.GetQueueAttributes) -> Reply:
    queue = await request.queue(body.QueueUrl)
    names = frozenset(body.AttributeNames or ())
    for name in names:
        if name not in NAMES and name != "All":
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    info = await request.broker.queue_info(request.caller, queue)
    found = attributes_of(info, request.record(queue), request.region)
    if needs_counts(names):
        found.update(shown_counts(*await dead_letters.counts(request, queue)))
    if "All" not in names:
        found = {name: value for name, value in found.items() if name in names}
    return request.reply({"Attributes": found} if found else {})


async def set_queue_attributes(request: Request, body: bodies.SetQueueAttributes) -> Reply:
    queue = await request.queue(body.QueueUrl)
    if not body.Attributes:
        raise SqsError("MissingRequiredParameterException", "There are no attributes to set.")
    if "FifoQueue" in body.Attributes and not is_fifo(queue):
        raise invalid_attribute("FifoQueue", "the type of a queue cannot be changed")
    change = read_attributes(queue, body.Attributes)
    request.broker.admit(request.caller, Verb.MANAGE, queue.namespace)
    async with request.records.turn:
        await _check_dead_queue(request, queue, change)
        settings = {**change.settings, **await _dead_retention(request, queue, change)}
        info: QueueInfo = await request.broker.store.info(queue)
        if settings:
            info = await request.broker.change_queue(request.caller, queue, settings)
        await request.records.change(queue, info.identity, change.record)
        retention_s = change.settings.get("default_ttl_s")
        if retention_s is not None:  # also that of the dead letters which it shows
            for source in request.records.sources(queue):
                changed = {"dead_retention_s": retention_s}
                await request.broker.change_queue(request.caller, source, changed)
    return request.reply({})


# -- tags ------------------------------------------------------------------------------------------


async def tag_queue(request: Request, body: bodies.TagQueue) -> Reply:
    queue = await request.queue(body.QueueUrl)
    if not body.Tags:
        raise SqsError("MissingRequiredParameterException", "The request must contain Tags.")
    return await _edit_tags(request, queue, lambda tags: {**tags, **body.Tags})


async def untag_queue(request: Request, body: bodies.UntagQueue) -> Reply:
    queue = await request.queue(body.QueueUrl)
    gone = frozenset(body.TagKeys)
    if not gone:
        raise SqsError("InvalidParameterValueException", "Tag keys must not be empty.")
    return await _edit_tags(
        request,
        queue,
        lambda tags: {name: value for name, value in tags.items() if name not in gone},
    )


async def _edit_tags(request: Request, queue: QueueName, edit: Any) -> Reply:
    request.broker.admit(request.caller, Verb.MANAGE, queue.namespace)

    def edited(record: Any) -> Any:
        tags = edit(record.tags)
        _check_tags(tags)
        return msgspec.structs.replace(record, tags=tags)

    info = await request.broker.store.info(queue)
    await request.records.edit(queue, info.identity, edited)
    return request.reply({})


async def list_queue_tags(request: Request, body: bodies.OfQueue) -> Reply:
    queue = await request.queue(body.QueueUrl)
    request.broker.admit(request.caller, Verb.READ, queue.namespace)
    tags = request.record(queue).tags
    return request.reply({"Tags": tags} if tags else {})


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > MAX_TAGS:
        raise SqsError(
            "InvalidParameterValueException", f"Too many tags added for queue: {len(tags)}."
        )
    for name, value in tags.items():
        if not 1 <= len(name) <= MAX_TAG_KEY or len(value) > MAX_TAG_VALUE:
            raise SqsError(
                "InvalidParameterValueException",
                f"A tag has a key of 1 to {MAX_TAG_KEY} and a value of at most {MAX_TAG_VALUE} "
                f"characters.",
            )
