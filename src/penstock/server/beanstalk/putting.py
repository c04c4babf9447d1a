"""Puts: publish them, a batch at a time if they have no options, and answer with job ids."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.codec import parse_id
from penstock.errors import PenstockError
from penstock.model import NewMessage
from penstock.server.beanstalk.answers import Answer, as_it_is
from penstock.server.beanstalk.commands import Put
from penstock.server.beanstalk.mapping import MAX_SEQ
from penstock.server.beanstalk.tubes import Tube

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection


def put_batch(connection: "Connection", bodies: list[bytes], size: int) -> None:
    """Publish puts without options together."""
    connection.is_producer = True
    connection.count("put", len(bodies))
    refusal = "DRAINING" if connection.is_draining else connection.refusal_of_size(0)
    if refusal is not None:
        for _ in bodies:
            connection.refuse(refusal)
    else:
        _publish(connection, bodies, size)


def put(connection: "Connection", head: Put, body: bytes) -> None:
    """Publish one put."""
    connection.is_producer = True
    connection.count("put")
    if connection.is_draining:
        connection.refuse("DRAINING")
        return
    message: bytes | NewMessage = body
    if not head.is_plain:
        message = NewMessage(
            payload=body, priority=head.priority, headers=head.headers, delay=head.delay_s or None
        )
    _publish(connection, [message], head.size)


def _publish(connection: "Connection", messages: "Sequence[bytes | NewMessage]", size: int) -> None:
    tube = connection.used
    if not connection.broker.has_queue(tube.queue):
        connection.run("put", _create_and_publish(connection, messages))
        return
    answer = Answer(connection, "put", _make_inserted, tube)
    answer.count = len(messages)
    connection.expect(answer, size)
    try:
        found = connection.broker.publish(connection.caller, tube.queue, messages, answer)
    except Exception as error:
        if answer.count == 1:
            answer.fail(error)
            return
        connection.forget(answer)
        connection.run("put", _publish_each(connection, tube, messages))  # to find out which
        return
    if found is not None and type(found) is not list:
        connection.wait_for(answer)  # it takes longer: keep the order of puts
    answer.wait_for(found)


async def _create_and_publish(
    connection: "Connection", messages: "Sequence[bytes | NewMessage]"
) -> bytes:
    tube = connection.used
    await connection.tubes.create(tube)
    return await _publish_each(connection, tube, messages)


async def _publish_each(
    connection: "Connection", tube: Tube, messages: "Sequence[bytes | NewMessage]"
) -> bytes:
    """Publish one after the other. Return all answers."""
    made = []
    for message in messages:
        try:
            (published,) = await connection.broker.publish(connection.caller, tube.queue, [message])
            made.append(await _inserted(connection, tube, [published.id]))
        except PenstockError as error:
            made.append(connection.text_of(error, "put").encode() + b"\r\n")
    return b"".join(made)


async def _inserted(connection: "Connection", tube: Tube, ids: list[str]) -> bytes:
    made = []
    for id_ in ids:
        _, identity, seq = parse_id(id_)
        made.append(b"INSERTED %d\r\n" % await connection.tubes.job_id(tube, identity, seq))
    return b"".join(made)


def _make_inserted(answer: Answer, published: list[Any]) -> bytes | None:
    tube: Tube = answer.subject
    base, known = tube.base, tube.identity
    made = []
    for id_, _ in published:
        _, identity, seq = parse_id(id_)
        if identity != known or seq > MAX_SEQ:  # the queue may have no number yet
            connection = answer.connection
            answer.make = as_it_is
            ids = [one[0] for one in published]
            answer.wait_for(connection.task(_inserted(connection, tube, ids)))
            return None
        made.append(b"INSERTED %d\r\n" % (base | seq))
    return made[0] if len(made) == 1 else b"".join(made)
