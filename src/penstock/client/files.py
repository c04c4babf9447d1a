"""Calls about the files of a queue: ranges of its segments, and segments to adopt."""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from penstock.client.request import Reply, Request, get, nothing, post
from penstock.queue.segments import (
    Adoption,
    LogInfo,
    QueueSegments,
    SegmentBytes,
    SegmentInfo,
    SnapshotInfo,
    StagedSegment,
    StagingInfo,
)

_OCTETS = {"content-type": "application/octet-stream"}
_ADOPTING_S = 3600.0  # adopting many gigabytes takes long


def segments(path: str, *, time_ns: int | None = None) -> Request[QueueSegments]:
    return get(f"{path}/segments", _segments_of, {"time_ns": time_ns})


def read_segment(path: str, log: str, base: int, start: int, end: int) -> Request[SegmentBytes]:
    return _raw(f"{path}/segments/{log}/{base}", {"from": str(start), "to": str(end)})


def read_index(path: str, log: str, base: int) -> Request[SegmentBytes]:
    return _raw(f"{path}/segments/{log}/{base}/index", {})


def note_archived(path: str, upto: int, archive: str = "", archived_as: str = "") -> Request[None]:
    where = {"archive": archive, "archived_as": archived_as} if archive else {}
    body = {"upto": upto, **where}
    return post(f"{path}/archived", nothing, body, method="PUT", idempotent=True)


def staging(path: str, *, applications: str | None = None) -> Request[StagingInfo]:
    return post(
        f"{path}/staging",
        lambda reply: StagingInfo(
            reply.data["identity"], reply.data["settings"], reply.data.get("applications", ())
        ),
        query={"applications": applications},
        idempotent=True,
    )


def stage(path: str, folder: str, name: str, offset: int, data: bytes) -> Request[None]:
    return Request(
        method="PUT",
        path=f"{path}/staging/{folder}/{name}",
        read=nothing,
        query={"at": str(offset)},
        headers=_OCTETS,
        body=data,
        idempotent=True,  # the same bytes in the same place
    )


def unstage(path: str, folder: str) -> Request[None]:
    return post(f"{path}/staging/{folder}", nothing, method="DELETE", idempotent=True)


def adopt(
    path: str, staged: Sequence[StagedSegment], app: str | None, version: int
) -> Request[Adoption]:
    body = {"staged": [one._asdict() for one in staged], "app": app, "version": version}
    return post(
        f"{path}/adopt",
        lambda reply: Adoption(**reply.data),
        body,
        idempotent=app is not None,  # by its name it is known
        wait_s=_ADOPTING_S,
    )


def _raw(path: str, query: dict[str, str]) -> Request[SegmentBytes]:
    return Request(method="GET", path=path, read=_bytes_of, query=query, idempotent=True, raw=True)


def _bytes_of(reply: Reply) -> SegmentBytes:
    return SegmentBytes(b64decode(reply.headers.get("penstock-segment", "")), reply.data)


def _segments_of(reply: Reply) -> QueueSegments:
    data = reply.data
    return QueueSegments(
        data["identity"],
        data["created_at_ns"],
        data["settings"],
        _log_of(data["messages"]),
        _log_of(data["events"]),
        [SnapshotInfo(**one) for one in data["snapshots"]],
        data.get("archive", ""),
        data.get("archived_as", ""),
        data.get("archive_damage", ""),
        data.get("archived_upto", 1),
    )


def _log_of(data: dict[str, Any]) -> LogInfo:
    segments = [
        SegmentInfo(
            one["base_seq"], one["end_seq"], one["size_bytes"], b64decode(one["header_b64"])
        )
        for one in data["segments"]
    ]
    return LogInfo(data["low"], data["next_seq"], segments, data.get("seq_at_time"))
