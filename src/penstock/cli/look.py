"""Commands that show a queue and its messages: stats, peek, why, retries, history."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Annotated

from penstock.cli.formatting import (
    dead_letter_json,
    duration,
    event_json,
    local_time,
    message_json,
    number,
    preview,
    printable,
    size,
    stats_json,
)
from penstock.cli.options import (
    MAIN,
    AsJson,
    Count,
    InGroup,
    MessageId,
    QueuePath,
    group_option,
    option,
)
from penstock.cli.targets import open_to_read, read_options
from penstock.cli.terminal import (
    exit_no,
    out,
    print_facts,
    print_json,
    print_list,
    print_text,
    table,
)
from penstock.client import connect_broker, is_url
from penstock.client.address import is_grpc, queue_address
from penstock.client.administration import QueueReader
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.model import NS, DeadLetter, GroupStats, HistoryEvent, Message
from penstock.queue import State

STATES = ("ready", "scheduled", "leased", "parked", "blocked", "dead")
_TOTALS = {  # field: column
    "acked": "acked",
    "nacked": "nacked",
    "timed_out": "timed out",
    "expired": "expired",
    "cancelled": "cancelled",
    "dead_lettered": "died",
    "redriven": "redriven",
    "discarded": "discarded",
}
_KEY_WIDTH = 16

StateName = StrEnum("StateName", [state.name for state in State])  # type: ignore[misc]


def stats(path: QueuePath, json: AsJson = False) -> None:
    """Show the number of messages in each state, and totals since the queue was created."""
    with open_to_read(path) as queue:
        found = queue.stats()
    readers = _readers(path)
    if json:
        shown = {} if readers is None else {"readers": [one._asdict() for one in readers]}
        print_json({**stats_json(found), **shown})
        return
    refused = f", {number(found.deduplicated, 'duplicate')} refused" if found.deduplicated else ""
    files = found.storage
    on_disk = (
        f"{size(files.message_log_bytes)} messages, {size(files.event_log_bytes)} events, "
        f"{number(files.segments, 'segment')}"
    )
    in_memory = f"{number(found.retrying)} retrying, {number(found.dedup_entries, 'dedup id')}"
    print_facts(
        [
            ("queue", path + ("   paused" if found.paused else "")),
            ("published", number(found.published, "message") + refused),
            ("read up to", f"message {found.read_position}"),
            ("in memory", in_memory),
            ("on disk", on_disk),
        ]
    )
    out.line()
    print_groups(found.groups)
    out.line()
    made = table("totals", *_TOTALS.values(), right=_TOTALS.values())
    for name, group in found.groups.items():
        made.add_row(name, *(number(getattr(group, total)) for total in _TOTALS))
    out.print(made)
    if readers:
        out.line()
        columns = ("lag", "position", "rows/s")
        made = table("reader", *columns, "reported", right=columns)
        for one in readers:
            numbers = number(one.lag), number(one.position), f"{one.rows_per_s:,.1f}"
            made.add_row(printable(one.name), *numbers, local_time(one.reported_at))
        out.print(made)


def _readers(path: str) -> list[QueueReader] | None:
    """Return the readers that a broker knows of; None for a directory, or an older broker."""
    if not is_url(path) or is_grpc(path):
        return None
    address = queue_address(path)
    with connect_broker(address.base, options=read_options()) as broker:
        try:
            return broker.readers(str(address.queue))
        except PenstockError:
            return None  # the counts of the queue were shown before: this is an extra


def print_groups(groups: Mapping[str, GroupStats]) -> None:
    """Print the number of messages in each state, by group."""
    made = table("group", *STATES, "oldest ready", right=[*STATES, "oldest ready"])
    for name, group in groups.items():
        counts = [number(getattr(group, state)) for state in STATES]
        made.add_row(name, *counts, duration(group.oldest_ready_age_s) if group.ready else "")
    out.print(made)


def peek(
    path: QueuePath,
    count: Count = 10,
    state: Annotated[
        StateName | None, option("Show messages in this state, by seq, instead of the next ones.")
    ] = None,
    group: InGroup = MAIN,
    json: AsJson = False,
) -> None:
    """Show the messages that are delivered next, or those in one state. Nothing is leased.

    Exits with 1 if there are none.
    """
    found: Sequence[Message | DeadLetter]
    with open_to_read(path) as queue:
        if state == "dead":
            found = letters = list(islice(queue.dead(group=group), count))
            print_dead_letters(letters, json)
        else:
            found = messages = (
                queue.peek(count, group=group)
                if state is None
                else list(islice(queue.browse(state.value, group=group), count))
            )
            _print_messages(messages, json)
    if not found:
        exit_no(f"no message is {state.value if state else 'ready'} in group {group!r}")


def _print_messages(messages: Sequence[Message], as_json: bool) -> None:
    keyed = any(message.key is not None for message in messages)
    columns = ["id", "age", "pri", *(["key"] if keyed else []), "payload"]
    made = table(*columns, right=["age", "pri"], rest="payload")

    def row(message: Message) -> list[str]:
        key = [_shorten(printable(message.key or ""))] if keyed else []
        age = _age(message.published_ns)
        return [message.id, age, str(message.priority), *key, preview(message.payload)]

    print_list(messages, as_json, message_json, made, row)


def print_dead_letters(letters: Sequence[DeadLetter], as_json: bool) -> None:
    """Print dead letters with the reason of their last failure."""
    made = table("id", "failed", "attempts", "reason", right=["failed", "attempts"], rest="reason")

    def row(letter: DeadLetter) -> list[str]:
        failed = f"{_age(letter.last_failure_ns)} ago"
        return [letter.id, failed, str(letter.attempts), printable(letter.reason)]

    print_list(letters, as_json, dead_letter_json, made, row)


def _age(at_ns: int) -> str:
    return duration(max(SystemClock().now_ns() - at_ns, 0) / NS)


def _shorten(key: str) -> str:
    return key if len(key) <= _KEY_WIDTH else f"{key[: _KEY_WIDTH - 1]}…"


def why(path: QueuePath, message: MessageId, group: InGroup = MAIN, json: AsJson = False) -> None:
    """Explain why a message is not being delivered now."""
    with open_to_read(path) as queue:
        answer = queue.why(message, group=group)
    if json:
        print_json({**answer._asdict(), "details": dict(answer.details)})
        return
    print_text(printable(answer.sentence))
    out.line()
    facts: dict[str, object] = {"message": answer.id, "group": answer.group}
    facts |= {"state": answer.state, "code": answer.code, **answer.details}
    print_facts((name, printable(str(value))) for name, value in facts.items())


def retries(
    path: QueuePath, message: MessageId, group: InGroup = MAIN, json: AsJson = False
) -> None:
    """Show the attempts of a message, its last failure, and the time of its next attempt."""
    with open_to_read(path) as queue:
        info = queue.retry_info(message, group=group)
    times = {
        "first failure": info.first_failure_at,
        "last failure": info.last_failure_at,
        "next attempt": info.next_attempt_at,
    }
    if json:
        document = {
            "id": info.id,
            "group": info.group,
            "state": info.state,
            "attempts": info.attempts,
            "max_attempts": info.max_attempts,
            "reason": info.reason,
        }
        print_json(document | {f"{name.replace(' ', '_')}_at": at for name, at in times.items()})
        return
    print_facts(
        [
            ("message", info.id),
            ("group", info.group),
            ("state", info.state),
            ("attempts", f"{info.attempts} of {info.max_attempts}"),
            *([("reason", printable(info.reason))] if info.reason else []),
            *((name, local_time(at)) for name, at in times.items() if at is not None),
        ]
    )


def history(
    path: QueuePath,
    message: MessageId,
    group: Annotated[str | None, group_option("Only the events of this group.")] = None,
    json: AsJson = False,
) -> None:
    """Show everything that happened to a message, oldest event first."""
    with open_to_read(path) as queue:
        events = queue.history(message, group=group)
    made = table("when", "event", "group", "attempt", "details", rest="details", wrap_rest=True)
    print_list(events, json, event_json, made, _event_row)


def _event_row(event: HistoryEvent) -> list[str]:
    details = [printable(event.reason)] if event.reason else []
    if event.holder:
        details.append(f"by {printable(event.holder)}")
    if event.retry_at_ns:
        details.append(f"again after {duration((event.retry_at_ns - event.at_ns) / NS)}")
    return [
        local_time(event.at),
        event.event.replace("_", " "),
        event.group or "",
        str(event.attempt or ""),
        "; ".join(details),
    ]
