"""The payload of a task's message: JSON with a version, never pickle.

    {"v": 1, "task": "welcome", "args": {"user_id": 7, "locale": "de"}}

`keep_s` is there if the result is to be kept. A result is a message too, see `results.py`. To
change the format: raise `VERSION`, and read the older ones.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import InvalidInput

VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")  # needs no escape in JSON


class Flow(msgspec.Struct, omit_defaults=True):
    """Where a task is a step of a workflow."""

    id: str
    step: str
    # Parameters that get results: of a step, or the list of those of several.
    inputs: dict[str, str | list[str]] = {}
    queues: dict[str, str] = {}  # of steps in other queues, whose results it gets
    feeds: list[str] = []  # other queues with steps that come after it


class PlannedStep(msgspec.Struct, omit_defaults=True):
    """A step in the plan of a workflow."""

    name: str
    task: str
    after: list[str] = []
    queue: str = ""  # empty: that of the plan


class Plan(msgspec.Struct, omit_defaults=True):
    """The plan of a workflow: a message of its own, which is never delivered."""

    v: int
    plan_of: str
    steps: list[PlannedStep]
    digest: str = ""  # of the steps, if they are in several queues


class Envelope(msgspec.Struct, omit_defaults=True):
    """A task's message, read."""

    v: int
    task: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")
    keep_s: float = 0.0
    flow: Flow | None = None
    plan_of: str = ""  # an id: this is the plan of a workflow, not a task
    result_of: str = ""  # an id: this is a result, not a task
    value: msgspec.Raw = msgspec.Raw(b"null")  # of a result
    error: str = ""  # of a result that could not be kept


_decoder = msgspec.json.Decoder(Envelope)


def check_task_name(name: object) -> str:
    """Return a task's name; raise InvalidInput if it is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"a task's name is {name!r}; it must have 1 to 200 of A-Z, a-z, 0-9, _, ., : and -, "
            f"and start with a letter, a digit or _"
        )
    return name


def pack(task: str, args: bytes, keep_s: float) -> bytes:
    """Return the payload of a task.

    >>> pack("welcome", b'{"user_id":7}', 0)
    b'{"v":1,"task":"welcome","args":{"user_id":7}}'
    """
    keep = b',"keep_s":%r' % keep_s if keep_s else b""
    return b'{"v":%d,"task":"%s","args":%s%s}' % (VERSION, task.encode(), args, keep)


def pack_step(task: str, args: bytes, keep_s: float, flow: Flow) -> bytes:
    """Return the payload of a step of a workflow."""
    return msgspec.json.encode(Envelope(VERSION, task, msgspec.Raw(args), keep_s, flow))


def pack_mark(flow: str, *, feeds: Sequence[str] = ()) -> bytes:
    """Return the payload of a message that is part of a workflow, and does nothing if it runs.

    `feeds`: other queues with messages that come after it.
    """
    part = Flow(flow, "", feeds=list(feeds)) if feeds else None
    return msgspec.json.encode(Envelope(VERSION, plan_of=flow, flow=part))


def feeds_of(payload: bytes) -> Sequence[str]:
    """Return the other queues with messages that come after the message with this payload."""
    if b'"feeds"' not in payload:
        return ()
    envelope = unpack(payload)
    return () if envelope is None or envelope.flow is None else envelope.flow.feeds


def unpack(payload: bytes) -> Envelope | None:
    """Return what a payload says; None if it is no payload of this module."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def pack_result(job_id: str, value: bytes, error: str = "") -> bytes:
    """Return the payload of a result."""
    packed: Any = {"v": VERSION, "result_of": job_id, "value": msgspec.Raw(value)}
    if error:
        packed["error"] = error
    return msgspec.json.encode(packed)
