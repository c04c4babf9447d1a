"""The files of a queue: its segments, for readers of whole logs, and a staging area for writers.

Made for the data pipeline, whose tasks read ranges of segments and decode them. They write segments
to the staging area, and one call adopts them: all or none.
"""

from base64 import b64encode
from typing import Annotated, Any, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.broker import StagedSegment, Verb
from penstock.broker.segments import MAX_STAGED_SEGMENT_BYTES, LogInfo, LogName
from penstock.errors import InvalidInput
from penstock.server.call import Answer, Call
from penstock.server.replies import Reply
from penstock.server.rest.endpoint import QUEUE, Endpoint, Parameter

_MOST = (1 << 63) - 1
_LOGS = ("messages", "events", "snapshots")
_SEGMENT = f"{QUEUE}/segments/{{log}}/{{base}}"
_STAGING = f"{QUEUE}/staging"
OCTETS = "application/octet-stream"
SEGMENT_HEADER = "Penstock-Segment"


class SegmentItem(Struct):
    """A segment: the seqs [base_seq, end_seq), and the number of its durable bytes."""

    base_seq: int
    end_seq: int
    size_bytes: int
    header_b64: str


class LogItem(Struct, omit_defaults=True):
    """A log. Entries below `low` were removed; those below `next_seq` are durable."""

    low: int
    next_seq: int
    segments: list[SegmentItem]
    seq_at_time: int | UnsetType = UNSET


class SnapshotItem(Struct):
    """A saved state: the fold of all events up to and including one."""

    event_seq: int
    size_bytes: int


class SegmentList(Struct):
    """The files of a queue at one moment."""

    identity: int
    created_at_ns: int
    settings: dict[str, Any]
    messages: LogItem
    events: LogItem
    snapshots: list[SnapshotItem]
    archive: str | UnsetType = UNSET
    archived_as: str | UnsetType = UNSET
    archive_damage: str | UnsetType = UNSET
    archived_upto: int | UnsetType = UNSET


class ArchivedBody(Struct, forbid_unknown_fields=True):
    """All messages below `upto` are in an archive that was verified."""

    upto: Annotated[int, Meta(ge=1, le=_MOST)]
    archive: Annotated[str, Meta(max_length=2048)] = ""
    archived_as: Annotated[str, Meta(max_length=256)] = ""


class Staging(Struct):
    """The data needed to write segments for the queue."""

    identity: int
    settings: dict[str, Any]
    applications: list[str]


class StagedItem(Struct, forbid_unknown_fields=True):
    """A staged segment, and the number of its messages."""

    folder: Annotated[str, Meta(max_length=64)]
    name: Annotated[str, Meta(max_length=32)]
    entries: Annotated[int, Meta(ge=0, le=_MOST)]


class AdoptBody(Struct, forbid_unknown_fields=True):
    """The segments of a job, in order. With `app` and `version`, it is adopted only once."""

    staged: list[StagedItem]
    app: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    version: Annotated[int, Meta(ge=0, le=_MOST)] = 0


class Adopted(Struct):
    """The seqs of the messages. `repeated`: they were adopted before, and nothing was changed."""

    first_seq: int
    entries: int
    repeated: bool


# -- reading ---------------------------------------------------------------------------------------


async def list_segments(call: Call) -> Answer:
    """List the segments of a queue, up to the last durable entry."""
    time_ns = call.query.whole("time_ns", 0, _MOST)
    found = await call.broker.files.segments(call.caller, call.queue, time_ns=time_ns)
    return SegmentList(
        found.identity,
        found.created_at_ns,
        dict(found.settings),
        _log_item(found.messages),
        _log_item(found.events),
        [SnapshotItem(*one) for one in found.snapshots],
        found.archive or UNSET,
        found.archived_as or UNSET,
        found.archive_damage or UNSET,
        found.archived_upto if found.archive else UNSET,
    )


def _log_item(log: LogInfo) -> LogItem:
    segments = [
        SegmentItem(one.base_seq, one.end_seq, one.size_bytes, b64encode(one.header).decode())
        for one in log.segments
    ]
    at = UNSET if log.seq_at_time is None else log.seq_at_time
    return LogItem(log.low, log.next_seq, segments, at)


async def read_segment(call: Call) -> Answer:
    """Read a range of bytes of a segment or snapshot, as they are on disk."""
    log, base = _log(call), _base(call)
    start = call.query.whole("from", 0, _MOST) or 0
    end = call.query.whole("to", 0, _MOST)
    found = await call.broker.files.read_segment(
        call.caller, call.queue, log, base, start=start, end=end
    )
    headers = [(SEGMENT_HEADER, b64encode(found.header).decode())] if found.header else []
    return Reply(found.data, 200, OCTETS, headers)


async def read_segment_index(call: Call) -> Answer:
    """Read the sparse index of a segment: which entry starts where."""
    found = await call.broker.files.read_index(call.caller, call.queue, _log(call), _base(call))
    return Reply(found, 200, OCTETS)


def _log(call: Call) -> LogName:
    log = call.path("log")
    if log not in _LOGS:
        raise InvalidInput(f"there is no log {log[:64]!r}; there are {', '.join(_LOGS)}")
    return cast(LogName, log)


def _base(call: Call) -> int:
    base = call.path("base")
    if not (base.isascii() and base.isdigit() and len(base) <= 20 and int(base) <= _MOST):
        raise InvalidInput(f"{base[:64]!r} is not a seq: a segment is named by its first one")
    return int(base)


async def note_archived(call: Call) -> Answer:
    """Record that all messages below a seq are archived."""
    body = await call.read(ArchivedBody)
    await call.broker.files.note_archived(
        call.caller, call.queue, body.upto, archive=body.archive, archived_as=body.archived_as
    )
    return None


# -- writing ---------------------------------------------------------------------------------------


async def open_staging(call: Call) -> Answer:
    """Return the data needed to write segments for a queue. Create the queue if it is missing."""
    prefix = call.query.text("applications")
    found = await call.broker.files.staging(call.caller, call.queue, prefix)
    return Staging(found.identity, dict(found.settings), list(found.applications))


async def stage_segment(call: Call) -> Answer:
    """Write a part of a segment to the staging area. May be repeated."""
    at = call.query.whole("at", 0, MAX_STAGED_SEGMENT_BYTES) or 0
    folder, name = call.path("folder"), call.path("name")
    await call.broker.files.stage(call.caller, call.queue, folder, name, at, call.body)
    return None


async def drop_staged(call: Call) -> Answer:
    """Delete the staged segments of a folder."""
    await call.broker.files.unstage(call.caller, call.queue, call.path("folder"))
    return None


async def adopt_staged(call: Call) -> Answer:
    """Adopt staged segments as messages: all or none, and a named job only once."""
    body = await call.read(AdoptBody)
    staged = [StagedSegment(one.folder, one.name, one.entries) for one in body.staged]
    found = await call.broker.files.adopt(
        call.caller, call.queue, staged, app=body.app, version=body.version
    )
    return Adopted(found.first_seq, found.entries, found.repeated)


_SEQ = Annotated[int, Meta(ge=0, le=_MOST)]
_RANGE = (
    Parameter("from", "The first byte; 0 if none is named.", _SEQ),
    Parameter("to", "The byte behind the last; as far as it is durable if none is named.", _SEQ),
)
_TIME = Parameter(
    "time_ns",
    "Nanoseconds since 1970: also say which entry of each log is the first at or after it.",
    _SEQ,
)
_AT = Parameter(
    "at", "Where in the segment; 0 if it is not named.", Annotated[int, Meta(ge=0, le=1 << 31)]
)
_APPLICATIONS = Parameter(
    "applications",
    "Also list the applications with a transaction in the queue whose names begin so.",
    str,
)
ENDPOINTS = (
    Endpoint(
        "GET",
        f"{QUEUE}/segments",
        list_segments,
        Verb.READ,
        SegmentList,
        query=(_TIME,),
        also=(404, 501),
    ),
    Endpoint(
        "GET",
        _SEGMENT,
        read_segment,
        Verb.READ,
        bytes,
        query=_RANGE,
        also=(404, 501),
        is_large=True,
    ),
    Endpoint("GET", f"{_SEGMENT}/index", read_segment_index, Verb.READ, bytes, also=(404, 501)),
    Endpoint(
        "PUT",
        f"{QUEUE}/archived",
        note_archived,
        Verb.MANAGE,
        status=204,
        body=ArchivedBody,
        also=(404, 501),
    ),
    Endpoint(
        "POST",
        _STAGING,
        open_staging,
        Verb.PUBLISH,
        Staging,
        query=(_APPLICATIONS,),
        also=(404, 501),
    ),
    Endpoint(
        "PUT",
        f"{_STAGING}/{{folder}}/{{name}}",
        stage_segment,
        Verb.PUBLISH,
        status=204,
        body=bytes,
        query=(_AT,),
        also=(404, 501),
    ),
    Endpoint(
        "DELETE", f"{_STAGING}/{{folder}}", drop_staged, Verb.PUBLISH, status=204, also=(404, 501)
    ),
    Endpoint(
        "POST",
        f"{QUEUE}/adopt",
        adopt_staged,
        Verb.PUBLISH,
        Adopted,
        body=AdoptBody,
        also=(404, 501),
    ),
)
