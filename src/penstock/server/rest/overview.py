"""All queues at a glance, and the history that charts show."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.broker import QUEUE_COLUMNS, SERIES, Chart, QueueSummary, Verb, check_name
from penstock.errors import InvalidInput
from penstock.names import QueueName
from penstock.operations.answers import rfc3339
from penstock.server.call import Answer, Call
from penstock.server.rest.endpoint import (
    API,
    PAGING,
    QUEUE,
    Endpoint,
    Parameter,
    limit_of,
    listing_of,
)
from penstock.server.rest.publish import TIME
from penstock.server.rest.structs import Name

_MOST_POINTS = 2000


class OverviewAnswer(Struct, omit_defaults=True, kw_only=True):
    """All queues that the key may read, added up. Messages are counted in every group.

    Rates are messages a second, over the last 10 to 20 seconds. `unknown` queues were opened by no
    running broker: their counts may be old.
    """

    queues: int
    paused: int
    unknown: int
    ready: int
    scheduled: int
    leased: int
    parked: int
    blocked: int
    dead: int
    publish_rate: float
    ack_rate: float
    fail_rate: float
    oldest_age_s: float
    oldest_queue: str | UnsetType = UNSET
    size_bytes: int
    free_bytes: int | UnsetType = UNSET
    brokers: int
    trouble: str | UnsetType = UNSET


class QueueRow(Struct, omit_defaults=True, kw_only=True):
    """A queue with its counts, in all groups. `spark` is the last ten minutes of a series."""

    namespace: str
    name: str
    ready: int
    scheduled: int
    leased: int
    parked: int
    blocked: int
    dead: int
    oldest_age_s: float
    size_bytes: int
    published: int
    delivered: int
    acked: int
    failed: int
    dead_lettered: int
    publish_rate: float
    ack_rate: float
    fail_rate: float
    groups: int
    paused: bool
    is_known: bool
    spark: Sequence[float | None] | UnsetType = UNSET


class QueueTable(Struct, omit_defaults=True):
    """A page of queues. `matched`: how many there are on all pages."""

    queues: list[QueueRow]
    matched: int
    cursor: str | UnsetType = UNSET


class ChartAnswer(Struct):
    """Series with one value for each step, the first at `start`. Null: not known, or nothing to
    measure. Counts are per second, other values are those at the end of a step."""

    start: str
    step_s: int
    points: int
    series: Mapping[str, Sequence[float | None]]


class SyncTimes(Struct):
    """How long rounds of syncs took since the broker started, in seconds."""

    samples: int
    p50: float
    p95: float
    p99: float
    longest: float


class StorageAnswer(Struct, omit_defaults=True, kw_only=True):
    """The store as a whole. `GET /readyz` shows the database behind it."""

    sync: SyncTimes
    queues: int
    size_bytes: int
    free_bytes: int | UnsetType = UNSET
    trouble: str | UnsetType = UNSET


async def get_store(call: Call) -> Answer:
    """Show how long syncs take, and how much room the store uses and has."""
    found = await call.broker.survey.storage(call.caller)
    return StorageAnswer(
        sync=SyncTimes(**found.sync._asdict()),
        queues=found.queues,
        size_bytes=found.size_bytes,
        free_bytes=UNSET if found.free_bytes is None else found.free_bytes,
        trouble=found.trouble or UNSET,
    )


async def get_overview(call: Call) -> Answer:
    """Show the sum over all queues that the key may read."""
    found = await call.broker.survey.overview(call.caller, _namespace(call))
    values: dict[str, Any] = {k: v for k, v in found._asdict().items() if v is not None}
    if found.oldest_queue is not None:
        values["oldest_queue"] = str(found.oldest_queue)
    return OverviewAnswer(**values)


async def get_table(call: Call) -> Answer:
    """List queues of all namespaces with their counts, sorted by any column."""
    query, namespace = call.query, _namespace(call)
    text, spark = query.text("text") or "", query.choice("spark", SERIES) or ""
    sort = query.choice("sort", QUEUE_COLUMNS) or "name"
    descending = query.flag("descending")
    listing = listing_of(call, namespace, text, sort, descending)
    cursor = query.text("cursor")
    after = call.service.cursors.read_name(listing, cursor)
    page = await call.broker.survey.queues(
        call.caller,
        namespace,
        text=text,
        sort=sort,
        descending=descending,
        after=_position(after),
        limit=limit_of(call),
        spark=spark,
    )
    last = None if page.next is None else msgspec.json.encode(page.next).decode()
    return QueueTable(
        [_row(one) for one in page.rows],
        page.matched,
        UNSET if last is None else call.service.cursors.make(listing, last),
    )


def _position(text: str) -> tuple[float | str, str] | None:
    return msgspec.json.decode(text, type=tuple[float | str, str]) if text else None


def _row(one: QueueSummary) -> QueueRow:
    values: dict[str, Any] = one._asdict()
    queue: QueueName = values.pop("queue")
    spark = values.pop("spark")
    return QueueRow(
        namespace=queue.namespace, name=queue.name, spark=list(spark) if spark else UNSET, **values
    )


async def get_chart(call: Call) -> Answer:
    """Show the history of all queues."""
    return _chart(await _read_chart(call, None))


async def get_queue_chart(call: Call) -> Answer:
    """Show the history of a queue."""
    return _chart(await _read_chart(call, call.queue))


async def _read_chart(call: Call, queue: QueueName | None) -> Chart:
    query = call.query
    since, until = query.time_s("since"), query.time_s("until")
    if since is not None and until is not None and since > until:
        raise InvalidInput("since is later than until: swap them")
    points = query.whole("max_points", 1, _MOST_POINTS)
    return await call.broker.survey.chart(
        call.caller, queue, since=since, until=until, max_points=points or 720
    )


def _chart(found: Chart) -> ChartAnswer:
    return ChartAnswer(
        rfc3339(round(found.start) * 1_000_000_000), found.step_s, found.points, found.series
    )


def _namespace(call: Call) -> str | None:
    name = call.query.text("namespace")
    return None if name is None else check_name("namespace", name)


_NAMESPACE = Parameter("namespace", "Only queues of this namespace.", Name)
_RANGE = (
    Parameter("since", f"The hour before now if it is left out: {TIME}"),
    Parameter("until", f"Now if it is left out: {TIME}"),
    Parameter(
        "max_points",
        "720 if it is left out. Steps are joined until they fit.",
        Annotated[int, Meta(ge=1, le=_MOST_POINTS)],
    ),
)
_TABLE = (
    _NAMESPACE,
    Parameter("text", "Only queues whose name contains this text, in any case."),
    Parameter("sort", "The column to sort by; name if it is left out.", Literal[QUEUE_COLUMNS]),
    Parameter("descending", "The largest first.", bool),
    Parameter("spark", "With this series of the last ten minutes.", Literal[SERIES]),
    *PAGING,
)

ENDPOINTS = (
    Endpoint(
        "GET",
        f"{API}/overview",
        get_overview,
        Verb.READ,
        OverviewAnswer,
        query=(_NAMESPACE,),
        also=(404,),
    ),
    Endpoint("GET", f"{API}/queues", get_table, Verb.READ, QueueTable, query=_TABLE, also=(404,)),
    Endpoint("GET", f"{API}/storage", get_store, Verb.READ, StorageAnswer),
    Endpoint("GET", f"{API}/chart", get_chart, Verb.READ, ChartAnswer, query=_RANGE),
    Endpoint(
        "GET",
        f"{QUEUE}/chart",
        get_queue_chart,
        Verb.READ,
        ChartAnswer,
        query=_RANGE,
        also=(404,),
    ),
)
