"""One call of SQS: who calls, in which namespace and region, and under which URL."""

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from penstock.broker import Broker, Caller, QueueName
from penstock.errors import (
    KeyRefused,
    NoSuchNamespace,
    NoSuchQueue,
    NotAllowed,
    PenstockError,
    Unavailable,
)
from penstock.model import NS
from penstock.server.call import Call, encode
from penstock.server.replies import Reply
from penstock.server.routes import split_url
from penstock.server.sqs import signatures
from penstock.server.sqs.errors import SqsError, missing, no_such_queue
from penstock.server.sqs.names import DEFAULT_REGION, queue_of_url, url_of_queue
from penstock.server.sqs.records import Record, Records
from penstock.server.sqs.signatures import Signed

if TYPE_CHECKING:
    from penstock.server.service import Service

_S = TypeVar("_S", bound=Struct)
CONTENT_TYPE = "application/x-amz-json-1.0"
_REQUEST_ID = "x-amzn-requestid"


class Request:
    """A call that was admitted."""

    __slots__ = ("call", "caller", "records")

    def __init__(self, call: Call, caller: Caller, records: Records) -> None:
        self.call = call
        self.caller = caller
        self.records = records

    @property
    def broker(self) -> Broker:
        return self.call.broker

    @property
    def namespace(self) -> str:
        """Return the caller's own namespace: its account, in the words of SQS."""
        namespaces = self.caller.namespaces
        if namespaces is not None and len(namespaces) == 1:
            return next(iter(namespaces))
        return self.call.service.settings.sqs_namespace

    @property
    def region(self) -> str:
        return signatures.region_of(self.call.headers) or DEFAULT_REGION

    def url(self, queue: QueueName) -> str:
        """Return the URL of a queue, at the address that the client called."""
        call, service = self.call, self.call.service
        headers, peer = call.headers, call.connection.peer
        scheme = service.forwarded(b"x-forwarded-proto", headers, peer)
        if scheme not in ("http", "https"):
            scheme = "https" if call.connection.is_tls else "http"
        host = service.forwarded(b"x-forwarded-host", headers, peer)
        host = host or headers.get(b"host", b"localhost").decode("latin-1")
        return url_of_queue(f"{scheme}://{host}", queue)

    async def queue(self, url: str) -> QueueName:
        """Return the queue of a URL. Raise QueueDoesNotExist if there is none."""
        return await self.check_exists(queue_of_url(url))

    async def check_exists(self, queue: QueueName) -> QueueName:
        """Raise QueueDoesNotExist if there is none. Another broker may have just made it.

        A caller does not learn which queues exist in a namespace that its key is not for.
        """
        namespaces = self.caller.namespaces
        if namespaces is not None and queue.namespace not in namespaces:
            raise NotAllowed(f"this key is not for namespace {queue.namespace!r}")
        if not self.broker.has_queue(queue):
            if not self.broker.is_open:
                raise Unavailable("the broker is starting or stopping: try again in a moment")
            try:
                await self.broker.store.info(queue)
            except (NoSuchQueue, NoSuchNamespace):
                raise no_such_queue() from None
        return queue

    def record(self, queue: QueueName) -> Record:
        return self.records.get(queue)

    def reply(self, value: Any) -> Reply:
        return reply_of(self.call, encode(value))


def reply_of(call: Call, body: bytes, status: int = 200, *more: tuple[str, str]) -> Reply:
    headers = ((_REQUEST_ID, call.request_id.decode()), *more)
    return Reply(body, status, CONTENT_TYPE, headers)


def error_reply(call: Call, error: SqsError) -> Reply:
    return reply_of(call, error.body(), error.status, *error.headers)


# -- bodies ----------------------------------------------------------------------------------------


def reader(kind: type[_S]) -> "Reader[_S]":
    return partial(_read, msgspec.json.Decoder(kind))


Reader = partial[_S]


def _read(decoder: "msgspec.json.Decoder[_S]", body: bytes) -> _S:
    """Decode the body of a request. Unknown fields are passed over, as AWS does."""
    try:
        body.decode()  # raises if it is not UTF-8: a decoder does not look at all of it
        return decoder.decode(body or b"{}")
    except msgspec.ValidationError as error:
        text = str(error)
        if text.startswith("Object missing required field"):
            raise missing(text.split("`")[1]) from None
        raise SqsError("SerializationException", text) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError("SerializationException", f"The body is not valid JSON: {error}") from None


# -- callers ---------------------------------------------------------------------------------------


def known_caller(call: Call) -> Caller | None:
    """Return the caller if that takes no waiting; None: use `admit`."""
    service, headers = call.service, call.headers
    if not signatures.is_signed(headers):
        if (
            service.keys.required
            and b"authorization" not in headers
            and (b"x-api-key" not in headers)
        ):
            raise SqsError(
                "MissingAuthenticationToken", "Request is missing Authentication Token", 403
            )
        return service.known_caller(headers, call.query_string, call.connection.peer)
    if service.keys.required:
        return None
    return service.keys.known(None, _address(call))


async def admit(call: Call) -> Caller:
    """Return the caller. Raise an error if its key or its signature is wrong."""
    service, headers = call.service, call.headers
    if not signatures.is_signed(headers):
        return await service.admit(headers, call.query_string, call.connection.peer)
    try:
        return await _admit_signed(call, service)
    except PenstockError as error:
        service.broker.metrics.refused(error)
        raise


async def _admit_signed(call: Call, service: "Service") -> Caller:
    keys, address = service.keys, _address(call)
    if not keys.required:
        return await keys.admit(None, address)
    signature = signatures.read_signature(call.headers)
    signatures.check_time(signature, service.broker.clock.now_ns() / NS)
    try:
        signer = await keys.signer(signature.key_id, address)
    except KeyRefused:
        raise SqsError(
            "InvalidClientTokenId", "The security token included in the request is invalid.", 403
        ) from None
    path, query = split_url(call.url)
    signed = Signed(
        call.method, path.decode("latin-1"), query.decode("latin-1"), call.header_list, call.body
    )
    verify = partial(signatures.verify, signature, signed, signer.secret_hash)
    if not await service.off_loop.run_if_large(len(signed.body), verify):
        keys.count_failure(address)
        raise signatures.wrong_signature()
    return signer.caller


def _address(call: Call) -> str:
    return call.service.address_of(call.headers, call.connection.peer)
