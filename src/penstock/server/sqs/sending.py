"""SendMessage and SendMessageBatch."""

import hashlib
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.broker import QueueName
from penstock.codec import parse_id
from penstock.model import NewMessage, Published
from penstock.server.call import Answer, Call, Later
from penstock.server.replies import Reply
from penstock.server.sqs import bodies
from penstock.server.sqs.attributes import DEDUP_WINDOW_S, MAX_DELAY_S, MAX_MESSAGE_BYTES
from penstock.server.sqs.batches import batch_answer, check_entries, failed
from penstock.server.sqs.errors import SqsError, invalid_value, missing
from penstock.server.sqs.message_attributes import (
    DEDUP_HEADER,
    GROUP_HEADER,
    TRACE_HEADER,
    check_attributes,
    check_system_attributes,
    headers_of,
    md5,
    md5_of,
)
from penstock.server.sqs.names import is_fifo
from penstock.server.sqs.records import Record
from penstock.server.sqs.request import Request

# Letters, digits and punctuation, as SQS allows in the ids of groups and of deduplication.
_ID = re.compile(r"[!-~]{1,128}", re.ASCII)
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WRONG_TYPE = "The request include parameter that is not valid for this queue type"


class Draft(NamedTuple):
    """A message that was checked, and the part of its answer that is known before it is sent."""

    message: NewMessage
    size: int
    answer: dict[str, Any]


async def send_message(request: Request, body: bodies.SendMessage) -> Answer | Later:
    queue = await request.queue(body.QueueUrl)
    draft = draft_of(queue, request.record(queue), body)
    call = request.call
    published = request.broker.publish(request.caller, queue, (draft.message,), call)
    return call.when_done(published, partial(_sent, request, queue, draft))


def _sent(
    request: Request, queue: QueueName, draft: Draft, _: Call, published: Sequence[Published]
) -> Reply:
    return request.reply(_answer(queue, draft, published[0]))


async def send_message_batch(request: Request, body: bodies.SendMessageBatch) -> Reply:
    """Send the entries that are valid, all or none of these."""
    queue = await request.queue(body.QueueUrl)
    check_entries("SendMessageBatchRequestEntry", body.Entries)
    record = request.record(queue)
    drafts: list[tuple[str, Draft]] = []
    bad = []
    for entry in body.Entries:
        try:
            drafts.append((entry.Id, draft_of(queue, record, entry)))
        except SqsError as error:
            bad.append(failed(entry.Id, error))
    size = sum(draft.size for _, draft in drafts)
    if size > MAX_MESSAGE_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. You have sent "
            f"{size} bytes.",
        )
    good = []
    if drafts:
        messages = [draft.message for _, draft in drafts]
        published = await request.broker.publish(request.caller, queue, messages)
        good = [
            {"Id": id_, **_answer(queue, draft, one)}
            for (id_, draft), one in zip(drafts, published, strict=True)
        ]
    return request.reply(batch_answer(good, bad))


def _answer(queue: QueueName, draft: Draft, published: Published) -> dict[str, Any]:
    answer = {**draft.answer, "MessageId": published.id}
    if is_fifo(queue):
        answer["SequenceNumber"] = sequence_number(parse_id(published.id)[2])
    return answer


def sequence_number(seq: int) -> str:
    """Return a number of 20 digits that grows with each message, like those of SQS."""
    return f"{seq:020d}"


# -- checking a message ----------------------------------------------------------------------------


def draft_of(queue: QueueName, record: Record, entry: bodies.NewEntry) -> Draft:
    """Check a message against the limits of SQS."""
    text = entry.MessageBody
    if not text:
        raise missing("MessageBody")
    if _FORBIDDEN.search(text):
        raise SqsError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to "
            "#xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        )
    payload = text.encode()
    answer = {"MD5OfMessageBody": md5(payload)}
    headers: dict[str, str] = {}
    size = len(payload)
    if entry.MessageAttributes:
        size += check_attributes(entry.MessageAttributes)
        headers = headers_of(entry.MessageAttributes)
        answer["MD5OfMessageAttributes"] = md5_of(entry.MessageAttributes)
    if entry.MessageSystemAttributes:
        trace = check_system_attributes(entry.MessageSystemAttributes)
        if trace is not None:  # its size does not count
            headers[TRACE_HEADER] = trace
        answer["MD5OfMessageSystemAttributes"] = md5_of(entry.MessageSystemAttributes)
    if size > record.max_bytes:
        raise SqsError(
            "InvalidParameterValueException",
            f"One or more parameters are invalid. Reason: Message must be shorter than "
            f"{record.max_bytes} bytes.",
        )
    options = _fifo_options if is_fifo(queue) else _standard_options
    message = NewMessage(
        payload=payload, **options(record, entry, payload, headers), headers=headers or None
    )
    return Draft(message, size, answer)


def _standard_options(
    record: Record, entry: bodies.NewEntry, _: bytes, headers: dict[str, str]
) -> dict[str, Any]:
    """Return the options of a message in a standard queue. Its group orders nothing."""
    if entry.MessageDeduplicationId is not None:
        raise invalid_value(
            "MessageDeduplicationId", entry.MessageDeduplicationId, f"{_WRONG_TYPE}."
        )
    if entry.MessageGroupId is not None:
        headers[GROUP_HEADER] = _check_id("MessageGroupId", entry.MessageGroupId)
    delay_s = record.delay_s if entry.DelaySeconds is None else entry.DelaySeconds
    if not 0 <= delay_s <= MAX_DELAY_S:
        raise invalid_value(
            "DelaySeconds", delay_s, f"DelaySeconds must be >= 0 and <= {MAX_DELAY_S}."
        )
    return {"delay": float(delay_s)} if delay_s else {}


def _fifo_options(
    record: Record, entry: bodies.NewEntry, payload: bytes, headers: dict[str, str]
) -> dict[str, Any]:
    """Return the options of a message in a FIFO queue: its group is the key."""
    if entry.DelaySeconds:
        raise invalid_value("DelaySeconds", entry.DelaySeconds, f"{_WRONG_TYPE}.")
    if entry.MessageGroupId is None:
        raise missing("MessageGroupId")
    group = _check_id("MessageGroupId", entry.MessageGroupId)
    if entry.MessageDeduplicationId is not None:
        dedup_id = _check_id("MessageDeduplicationId", entry.MessageDeduplicationId)
        headers[DEDUP_HEADER] = dedup_id
    elif record.dedups_by_content:
        dedup_id = content_id(payload)
    else:
        raise SqsError(
            "InvalidParameterValueException",
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly",
        )
    return {
        "key": group,
        "dedup_id": f"{group} {dedup_id}" if record.dedups_by_group else dedup_id,
        "dedup_window_s": DEDUP_WINDOW_S,
        **({"delay": float(record.delay_s)} if record.delay_s else {}),
    }


def content_id(payload: bytes) -> str:
    """Return the deduplication id of a message that has none of its own."""
    return hashlib.sha256(payload).hexdigest()


def _check_id(name: str, value: str) -> str:
    if not _ID.fullmatch(value):
        raise invalid_value(
            name,
            value,
            f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )
    return value
