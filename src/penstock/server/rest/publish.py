# cython: annotation_typing=False
"""POST …/{queue}/messages: publish one message or several, all or none.

Messages arrive as JSON objects, or as a body that is the payload itself.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from penstock.broker import Verb
from penstock.broker.limits import SMALL_BYTES
from penstock.errors import InvalidInput
from penstock.model import NewMessage, Published, TypedPayload
from penstock.server import strict_json
from penstock.server.call import Answer, Call, encode, media_type, require_json
from penstock.server.off_loop import from_base64, size_of_many
from penstock.server.problems import NotJson
from penstock.server.replies import JSON
from penstock.server.rest.endpoint import QUEUE, Endpoint, Parameter
from penstock.server.rest.query import Query, unix_seconds, unix_seconds_of_query
from penstock.server.rest.structs import (
    NewMessageBody,
    PlainMessageBody,
    PublishedMessage,
    PublishedMessages,
)
from penstock.server.strict_json import is_surely_strict

FORM = "application/x-www-form-urlencoded"  # the default of curl -d
HEADER_PREFIX = b"penstock-h-"

_decode_plain = msgspec.json.Decoder(PlainMessageBody).decode
_one = msgspec.json.Decoder(NewMessageBody)
_many = msgspec.json.Decoder(list[NewMessageBody])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_LARGE_BATCH_BYTES = 64 * 1024
_new_tuple = tuple.__new__  # a named tuple without a call of Python code


_JSON_TYPES = frozenset({JSON.encode(), b"application/json; charset=utf-8"})  # the usual ones


def publish_messages(call: Call) -> Any:
    """Publish a message, or an array of them: all or none."""
    if call.headers.get(b"content-type") in _JSON_TYPES or media_type(call.content_type) == JSON:
        if call.size <= SMALL_BYTES and not call.query_string:
            plain = _plain_message(call.whole_body())
            if plain is not None:  # the usual call
                return call.publish_one(plain, _answer_one)
        if call.query_string and call.query.given():
            raise InvalidInput(
                f"{', '.join(call.query.given())} in the query string: the options of a message in "
                f"JSON are fields of it"
            )
        return call.with_body(read_messages, _publish)
    message = read_raw_message(call.body, call.content_type, call.header_list, call.query)
    return _publish(call, ([message], False))


def publish_batch(call: Call) -> Any:
    """Publish an array of messages: all or none."""
    require_json(call)
    return call.with_body(_read_array, _publish)


def _publish(call: Call, read: tuple[list[NewMessage | TypedPayload | bytes], bool]) -> Answer:
    messages, is_batch = read
    publishing = call.broker.publish(call.caller, call.queue, messages, call)
    return call.when_done(publishing, _answer_batch if is_batch else _answer_one, _size)


def _answer_one(_: Call, published: Sequence[Published]) -> bytes:
    id_, is_duplicate = published[0]
    if not is_duplicate:
        return b'{"id":"%s"}' % id_.encode()  # an id needs no escape
    return encode(PublishedMessage(id_, is_duplicate))


def _answer_batch(_: Call, published: Sequence[Published]) -> bytes:
    return encode(PublishedMessages([PublishedMessage(one.id, one.duplicate) for one in published]))


def _size(published: Sequence[Published]) -> int:
    return size_of_many(len(published))


# -- reading messages ------------------------------------------------------------------------------


def read_messages(body: bytes) -> tuple[list[NewMessage | TypedPayload | bytes], bool]:
    """Return the messages of a JSON body, and whether it is an array. Runs in any thread."""
    strict_json.check_values(body)
    if body.lstrip()[:1] == b"[":
        return _read_batch(body), True
    return [_read_one(body)], False


def _read_array(body: bytes) -> tuple[list[NewMessage | TypedPayload | bytes], bool]:
    messages, is_batch = read_messages(body)
    if not is_batch:
        raise InvalidInput("a batch is an array of messages, and this is a single one - at `$`")
    return messages, True


def _read_batch(body: bytes) -> list[NewMessage | TypedPayload | bytes]:
    if len(body) > _LARGE_BATCH_BYTES:
        return _read_large_batch(body)
    items = strict_json.decode(body, _many)
    return [new_message(item, f"$[{index}]") for index, item in enumerate(items)]


def _read_large_batch(body: bytes) -> list[NewMessage | TypedPayload | bytes]:
    """Decode messages one by one, so that other threads can run in between."""
    try:
        items = _raws.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    found = []
    for index, item in enumerate(items):
        try:
            found.append(_read_one(bytes(item)))
        except InvalidInput as error:
            text = str(error)
            if " - at `$" in text:
                text = text.replace(" - at `$", f" - at `$[{index}]")
            else:
                text = f"{text} - at `$[{index}]`"
            raise InvalidInput(text) from None
    return found


def _plain_message(body: bytes) -> TypedPayload | None:
    """Return a payload, perhaps with its content type; None if there is anything else."""
    try:
        plain = _decode_plain(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # it has options, is an array, or is not valid
    if is_surely_strict is None or len(body) > SMALL_BYTES or not is_surely_strict(body):
        strict_json.check_decoded(body)  # the payload may be any JSON
    return _new_tuple(TypedPayload, (bytes(plain.payload), plain.content_type or JSON))


def _read_one(body: bytes) -> NewMessage | TypedPayload | bytes:
    plain = _plain_message(body)
    if plain is not None:
        return plain
    one = strict_json.decode_closed(body, _one)
    if one.payload is not UNSET:
        strict_json.check_decoded(body)  # the payload may be any JSON
    elif one.payload_b64 is not UNSET and strict_json.has_one_key_at_most(body):
        return _from_base64(one.payload_b64, "$")  # so it has no options
    return new_message(one, "$")


def new_message(body: NewMessageBody, path: str) -> NewMessage | TypedPayload | bytes:
    """Return a message for the broker. Without options it is a payload, perhaps with its content
    type, for which the queue has a fast path."""
    content_type = body.content_type
    if body.payload is not UNSET:
        if body.payload_b64 is not UNSET:
            raise InvalidInput(f"give payload or payload_b64, not both - at `{path}`")
        payload = bytes(body.payload)
        content_type = content_type or JSON
        if _has_no_options(body):
            return TypedPayload(payload, content_type)
    elif body.payload_b64 is not UNSET:
        payload = _from_base64(body.payload_b64, path)
        if content_type is None and _has_no_options(body):
            return payload
    else:
        raise InvalidInput(f"a message needs payload or payload_b64 - at `{path}`")
    return NewMessage(
        payload=payload,
        priority=body.priority,
        delay=body.delay_s,
        deliver_at=None
        if body.deliver_at is None
        else unix_seconds(f"{path}.deliver_at", body.deliver_at),
        ttl=body.ttl_s,
        headers=body.headers,
        key=body.key,
        dedup_id=body.dedup_id,
        dedup_window_s=body.dedup_window_s,
        max_attempts=body.max_attempts,
        content_type=content_type,
        compression=body.compression,
        after=body.after,
        after_failed=body.after_failed,
        tenant=body.tenant,
    )


def _has_no_options(body: NewMessageBody) -> bool:
    return (
        body.priority is None
        and body.delay_s is None
        and body.deliver_at is None
        and body.ttl_s is None
        and body.headers is None
        and body.key is None
        and body.dedup_id is None
        and body.dedup_window_s is None
        and body.max_attempts is None
        and body.compression is None
        and body.after is None
        and body.after_failed is None
        and body.tenant is None
    )


def _from_base64(text: str, path: str) -> bytes:
    try:
        return from_base64(text)
    except ValueError as error:
        raise InvalidInput(f"{error}; it must be base64 - at `{path}.payload_b64`") from None


def read_raw_message(
    body: bytes, content_type: str | None, headers: list[tuple[bytes, bytes]], query: Query
) -> NewMessage:
    """Return the message of a body that is the payload itself.

    Options are in the query string, headers are Penstock-H-<name>.
    """
    if media_type(content_type) == FORM:
        raise NotJson(
            f"the content type is {FORM}, which curl sends by default: send "
            f"-H 'Content-Type: {JSON}' with a message in JSON, or "
            f"-H 'Content-Type: application/octet-stream' --data-binary with a payload as it is"
        )
    deliver_at = query.text("deliver_at")
    return NewMessage(
        payload=body,
        priority=query.whole("priority", 0, 9),
        delay=query.number("delay_s"),
        deliver_at=None if deliver_at is None else unix_seconds_of_query("deliver_at", deliver_at),
        ttl=query.number("ttl_s"),
        headers=_headers(headers) or None,
        key=query.text("key"),
        dedup_id=query.text("dedup_id"),
        dedup_window_s=query.number("dedup_window_s"),
        max_attempts=query.whole("max_attempts", 1, 65535),
        content_type=content_type,
        compression=query.text("compression"),
        after=_split(query.text("after")),
        after_failed=query.text("after_failed"),
        tenant=query.text("tenant"),
    )


def _split(ids: str | None) -> list[str] | None:
    return None if ids is None else [id_ for id_ in ids.split(",") if id_]


def _headers(headers: list[tuple[bytes, bytes]]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        if name.startswith(HEADER_PREFIX):
            short = name[len(HEADER_PREFIX) :].decode("latin-1")
            if short in found:
                raise InvalidInput(f"the header Penstock-H-{short} is given twice")
            try:
                found[short] = value.decode()
            except UnicodeDecodeError:
                raise InvalidInput(f"the header Penstock-H-{short} is not UTF-8") from None
    return found


TIME = "RFC 3339, or milliseconds since 1970."
_OPTIONS = (  # of a body that is not JSON
    Parameter("priority", "0 to 9, higher first.", Annotated[int, Meta(ge=0, le=9)]),
    Parameter("delay_s", "Seconds until it is due.", Annotated[float, Meta(ge=0)]),
    Parameter("deliver_at", f"When it is due: {TIME}"),
    Parameter("ttl_s", "Seconds until it expires.", Annotated[float, Meta(ge=0)]),
    Parameter("key", "At most one message of a key is leased at a time."),
    Parameter("dedup_id", "A second message with it is answered with the first's id."),
    Parameter("dedup_window_s", "How long that is remembered.", Annotated[float, Meta(gt=0)]),
    Parameter("max_attempts", "Then it is dead.", Annotated[int, Meta(ge=1, le=65535)]),
    Parameter("compression", "How to store it.", Literal["none", "gzip", "zstd"]),
    Parameter("after", "Ids of messages that it comes after, with commas between."),
    Parameter("after_failed", "What happens to it if one of them fails.", Literal["dead", "run"]),
    Parameter("tenant", "Whom it is for: counts for limits and fair share."),
)

ENDPOINTS = (
    Endpoint(
        "POST",
        f"{QUEUE}/messages",
        publish_messages,
        Verb.PUBLISH,
        PublishedMessage,  # of an array: PublishedMessages
        status=201,
        body=NewMessageBody,
        query=_OPTIONS,
        also=(404, 429),
    ),
    # For generated clients: a call that takes or answers one of two types is awkward in them.
    Endpoint(
        "POST",
        f"{QUEUE}/messages/batch",
        publish_batch,
        Verb.PUBLISH,
        PublishedMessages,
        status=201,
        body=list[NewMessageBody],
        also=(404, 429),
    ),
)
