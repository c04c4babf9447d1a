"""Serializers: objects of a program as payloads, and back."""

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar, Unpack

from penstock.errors import InvalidInput
from penstock.model import LeasedMessage, Message, NewMessage, PublishOptions, new_message
from penstock.queue.binding import ForTasks, ForThreads, method, value_of
from penstock.queue.facade import AnyAsyncQueue, AnyQueue
from penstock.queue.handlers import check_extension

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Turns objects into payloads and back."""

    @property
    def content_type(self) -> str:
        """The content type of its payloads."""

    def encode(self, value: T) -> bytes:
        """Return an object as a payload."""

    def decode(self, payload: bytes) -> T:
        """Return the object of a payload."""


def check_serializer(serializer: object) -> None:
    """Raise InvalidInput if an object is not a serializer."""
    check_extension("serializer", serializer, ["encode", "decode"])
    if not isinstance(getattr(serializer, "content_type", None), str):
        raise InvalidInput(f"serializer is {serializer!r}; it must have a text content_type")


class _ObjectMethods(Generic[T]):
    def __init__(self, queue: Any, serializer: Serializer[T]) -> None:
        check_serializer(serializer)
        self._queue = queue
        self._serializer = serializer

    @method
    async def enqueue(self, value: T, **options: Unpack[PublishOptions]) -> str:
        """Publish an object and return the message's id. Options are those of `Queue.enqueue`."""
        (id_,) = await value_of(self._queue.enqueue_batch([self._message(value, options)]))
        return str(id_)

    @method
    async def enqueue_batch(self, values: Iterable[T]) -> list[str]:
        """Publish several objects, all or none, and return their messages' ids."""
        messages = [self._message(value, {}) for value in values]
        ids: list[str] = await value_of(self._queue.enqueue_batch(messages))
        return ids

    def value(self, message: Message | LeasedMessage) -> T:
        """Return the object of a message."""
        return self._serializer.decode(message.payload)

    def _message(self, value: T, options: PublishOptions) -> NewMessage:
        given: PublishOptions = {"content_type": self._serializer.content_type}
        return new_message(self._serializer.encode(value), {**given, **options})


class ObjectQueue(_ObjectMethods[T], ForThreads):
    """Publishes objects to a queue, and reads them from messages, by a serializer.

    >>> import json, penstock, tempfile
    >>> class Json:
    ...     content_type = "application/json"
    ...     def encode(self, value): return json.dumps(value).encode()
    ...     def decode(self, payload): return json.loads(payload)
    >>> with penstock.open(tempfile.mkdtemp()) as queue:
    ...     orders = ObjectQueue(queue, Json())
    ...     id = orders.enqueue({"order": 7}, priority=9)
    ...     orders.value(queue.dequeue())
    {'order': 7}
    """

    def __init__(self, queue: AnyQueue, serializer: Serializer[T]) -> None:
        if not isinstance(queue, AnyQueue):
            raise InvalidInput(
                f"queue is {queue!r}; it must be an open queue for threads. For a queue of "
                f"penstock.aio, use AsyncObjectQueue"
            )
        super().__init__(queue, serializer)


class AsyncObjectQueue(_ObjectMethods[T], ForTasks):
    """The same for a queue for tasks."""

    def __init__(self, queue: AnyAsyncQueue, serializer: Serializer[T]) -> None:
        if not isinstance(queue, AnyAsyncQueue):
            raise InvalidInput(
                f"queue is {queue!r}; it must be an open queue of penstock.aio. For a queue for "
                f"threads, use ObjectQueue"
            )
        super().__init__(queue, serializer)
