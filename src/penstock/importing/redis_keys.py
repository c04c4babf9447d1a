"""Read a list or a stream of Redis: plain ones, and the queues of Celery and RQ.

Celery's messages are taken apart: body, content type, headers, priority. RQ's jobs are imported as
RQ stored them (a compressed pickle, never unpickled), with their description. Redis does not say
when an element of a list was added, so the time of the import counts, or what the message says.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, cast

from penstock.checking import unix_ns
from penstock.clock import Clock, SystemClock
from penstock.importing.record import MAX_PROBLEMS, PICKLE, Imported, ImportFailed, content_type_of

_PAGE = 500
_RQ_QUEUE, _RQ_JOB = "rq:queue:", "rq:job:"
_HIGHEST = 9


class RedisKey:
    """One key of a Redis server: a list or a stream."""

    max_attempts: int | None = None

    def __init__(
        self,
        url: str,
        key: str,
        *,
        pop: Literal["left", "right"] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Connect. `pop`: the end of a plain list at which consumers take; default left.

        Celery takes at the right, RQ at the left: for them it need not be said.
        """
        from redis import Redis
        from redis.exceptions import RedisError

        self._error = RedisError
        self._key, self._pop = key, pop
        self._now_ns = (clock or SystemClock()).now_ns()
        self.problems: list[str] = []
        try:
            self._redis = cast(Any, Redis).from_url(
                url, socket_timeout=30, socket_connect_timeout=10
            )
            self._kind = str(self._redis.type(key), "ascii")
        except (RedisError, ValueError) as error:
            raise ImportFailed(
                f"Redis cannot be asked for the key {key!r}: {str(error).rstrip(chr(46))}."
            ) from None
        if self._kind not in ("list", "stream"):
            raise ImportFailed(
                f"The key {key!r} is {'missing' if self._kind == 'none' else f'a {self._kind}'}; "
                "a list or a stream can be imported."
            )
        self.name = f"Redis {self._kind} {key!r}"

    def messages(self) -> Iterator[Imported]:
        try:
            if self._kind == "stream":
                yield from self._stream()
            elif self._key.startswith(_RQ_QUEUE):
                yield from self._rq_jobs()
            else:
                yield from self._list()
        except self._error as error:
            raise ImportFailed(f"{self.name} cannot be read: {error}.") from None

    # -- lists -------------------------------------------------------------------------------------

    def _list(self) -> Iterator[Imported]:
        length = int(self._redis.llen(self._key))
        if not length:
            return
        newest = self._redis.lindex(self._key, 0)
        is_celery = self._pop is None and _celery_message(bytes(newest or b"")) is not None
        from_right = is_celery or self._pop == "right"
        for number, element in enumerate(self._elements(length, from_right), start=1):
            yield self._of_element(f"element {number}", element)

    def _elements(self, length: int, from_right: bool) -> Iterator[bytes]:
        """Yield the elements in the order in which consumers would take them."""
        for start in range(0, length, _PAGE):
            end = min(start + _PAGE, length)
            first, last = (length - end, length - start - 1) if from_right else (start, end - 1)
            page: list[bytes] = self._redis.lrange(self._key, first, last)
            yield from reversed(page) if from_right else page

    def _of_element(self, origin: str, element: bytes) -> Imported:
        message = _celery_message(element)
        if message is None:
            type_ = content_type_of(element)
            return Imported(origin, element, self._now_ns, content_type=type_)
        properties = message["properties"]
        body = message["body"]
        payload = body.encode()
        if properties.get("body_encoding") == "base64":
            try:
                payload = base64.b64decode(body, validate=True)
            except binascii.Error:
                self._note(f"{origin}: its body is not base64; imported as it is")
        eta = _time_ns(message["headers"].get("eta"))
        return Imported(
            origin=origin,
            payload=payload,
            timestamp_ns=self._now_ns,
            priority=min(max(int(properties.get("priority") or 0), 0), _HIGHEST) or None,
            headers=_texts(message["headers"]),
            content_type=message.get("content-type"),
            expires_ns=_time_ns(message["headers"].get("expires")),
            deliver_ns=eta,
        )

    # -- RQ ----------------------------------------------------------------------------------------

    def _rq_jobs(self) -> Iterator[Imported]:
        length = int(self._redis.llen(self._key))
        for job_id in self._elements(length, from_right=False):
            name = job_id.decode("utf-8", "replace")
            job: dict[bytes, bytes] = self._redis.hgetall(f"{_RQ_JOB}{name}")
            if b"data" not in job:
                self._note(f"job {name} has no data: left out")
                continue
            created_ns = _time_ns(job.get(b"created_at", b"").decode("utf-8", "replace"))
            headers = {"rq-job-id": name}
            if b"description" in job:
                headers["rq-description"] = job[b"description"].decode("utf-8", "replace")
            yield Imported(
                origin=f"job {name}",
                payload=job[b"data"],
                timestamp_ns=created_ns or self._now_ns,
                headers=headers,
                content_type=f"{PICKLE}+zlib",
            )

    # -- streams -----------------------------------------------------------------------------------

    def _stream(self) -> Iterator[Imported]:
        after = "-"
        while True:
            page: list[tuple[bytes, dict[bytes, bytes]]]
            page = self._redis.xrange(self._key, min=after, count=_PAGE)
            for entry_id, fields in page:
                milliseconds = int(entry_id.partition(b"-")[0])
                payload, type_ = _payload_of(fields)
                yield Imported(
                    origin=f"entry {entry_id.decode()}",
                    payload=payload,
                    timestamp_ns=milliseconds * 1_000_000,
                    content_type=type_,
                )
            if len(page) < _PAGE:
                return
            after = f"({page[-1][0].decode()}"

    def _note(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def _celery_message(element: bytes) -> dict[str, Any] | None:
    """Return a message as Celery's transport (kombu) writes it, or None if it is none."""
    if not element.startswith(b"{"):
        return None
    try:
        found = json.loads(element)
    except (ValueError, RecursionError):
        return None
    is_one = (
        isinstance(found.get("body"), str)
        and isinstance(found.get("properties"), dict)
        and isinstance(found.get("headers"), dict)
    )
    return found if is_one else None


def _texts(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers as text: others than text become JSON, missing ones are left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in headers.items()
        if value is not None
    }


def _payload_of(fields: Mapping[bytes, bytes]) -> tuple[bytes, str | None]:
    """Return the payload of a stream's entry: its only field, or all of them as JSON."""
    if len(fields) == 1:
        [payload] = fields.values()
        return payload, content_type_of(payload)
    texts = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in fields.items()}
    return json.dumps(texts, ensure_ascii=False).encode(), "application/json"


def _time_ns(text: object) -> int | None:
    if not isinstance(text, str) or not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return unix_ns(moment.timestamp())
