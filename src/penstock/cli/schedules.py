"""Commands about the schedules of a queue."""

from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from penstock.cli.formatting import duration, local_time, number
from penstock.cli.messages import open_input
from penstock.cli.options import (
    AsJson,
    ContentType,
    Headers,
    Key,
    MaxAttempts,
    PayloadFile,
    PayloadText,
    Priority,
    QueuePath,
    Tenant,
    Ttl,
    Yes,
    argument,
    command_group,
    duration_option,
    option,
    parse_pairs,
)
from penstock.cli.targets import open_to_read, open_to_write
from penstock.cli.terminal import (
    confirm,
    exit_no,
    print_json,
    print_line,
    print_list,
    print_result,
    print_stderr,
    table,
)
from penstock.model import NS, NewMessage
from penstock.operations.scheduling import MAX_TIMES, Schedule, ScheduleState

schedules_app = command_group("schedules", "Publish messages again and again, at set times.")

_ScheduleName = Annotated[str, argument("NAME", "Name of the schedule.")]


class Misfire(StrEnum):
    """What happens to missed ticks."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


@schedules_app.command("list")
def list_schedules(path: QueuePath, json: AsJson = False) -> None:
    """List the schedules with their next times."""
    with open_to_read(path) as queue:
        found = queue.schedules()
    columns = ("schedule", "times", "time zone", "next", "last", "fired")
    print_list(found, json, _document, table(*columns, right=("fired",)), _row)


def _row(state: ScheduleState) -> list[str]:
    shown = "paused" if state.paused else _time(state.next_ns) or "does not run"
    times = state.cron or f"every {duration(state.every_s)}"
    last = _time(state.last_due_ns)
    return [state.name, times, state.time_zone, shown, last, number(state.fired)]


def _time(at_ns: int) -> str:
    return local_time(at_ns / NS) if at_ns else ""


def _document(state: ScheduleState) -> dict[str, Any]:
    """Return a schedule as JSON. Times are Unix seconds; a missing value is null."""
    return {
        "name": state.name,
        "cron": state.cron or None,
        "every_s": state.every_s or None,
        "time_zone": state.time_zone or None,
        "misfire": state.misfire,
        "grace_s": state.grace_s,
        "catch_up_max": state.catch_up_max,
        "paused": state.paused,
        "next_at": _seconds(state.next_ns),
        "last_due_at": _seconds(state.last_due_ns),
        "last_message_id": state.last_message_id or None,
        "last_missed_at": _seconds(state.last_missed_ns),
        "fired": state.fired,
        "trouble": state.trouble or None,
    }


def _seconds(at_ns: int) -> float | None:
    return at_ns / NS or None


@schedules_app.command("add")
def add_schedule(
    path: QueuePath,
    name: _ScheduleName,
    payload: PayloadText = None,
    cron: Annotated[
        str | None, option("Minute, hour, day of month, month, day of week.", metavar="CRON")
    ] = None,
    every: Annotated[
        float | None, duration_option("Time from one tick to the next, instead of --cron.")
    ] = None,
    time_zone: Annotated[
        str | None, option("Time zone of --cron. Default: UTC.", metavar="ZONE")
    ] = None,
    file: PayloadFile = None,
    priority: Priority = None,
    delay: Annotated[float | None, duration_option("Deliver this time after the tick.")] = None,
    ttl: Ttl = None,
    header: Headers = None,
    key: Key = None,
    max_attempts: MaxAttempts = None,
    content_type: ContentType = None,
    tenant: Tenant = None,
    misfire: Annotated[Misfire, option("What happens to missed ticks.")] = Misfire.ONCE,
    grace: Annotated[float, duration_option("A tick that is later than this was missed.")] = 60.0,
    catch_up: Annotated[
        int, option("The most missed ticks that `--misfire all` publishes.", "--catch-up")
    ] = 100,
    json: AsJson = False,
) -> None:
    """Add a schedule, or replace the one of that name. Give --cron or --every."""
    with open_input(payload, file) as source:
        message = NewMessage(
            payload=source.read(),
            priority=priority,
            delay=delay,
            ttl=ttl,
            headers=parse_pairs(header, "header") or None,
            key=key,
            max_attempts=max_attempts,
            content_type=content_type,
            tenant=tenant,
        )
    schedule = Schedule(
        name,
        message,
        cron=cron,
        every_s=every,
        time_zone=time_zone,
        misfire=misfire.value,
        grace_s=grace,
        catch_up_max=catch_up,
    )
    with open_to_write(path) as queue:
        state = queue.put_schedule(schedule)
    print_result(json, _document(state), _sentence(state))


def _sentence(state: ScheduleState) -> str:
    if state.paused:
        return f"Schedule {state.name!r} is paused."
    if not state.next_ns:
        return f"Schedule {state.name!r} does not run: {state.trouble}"
    return f"Schedule {state.name!r}: next at {_time(state.next_ns)}."


@schedules_app.command("remove")
def remove_schedule(
    path: QueuePath, name: _ScheduleName, yes: Yes = False, json: AsJson = False
) -> None:
    """Remove a schedule. Messages that it published stay. Asks first."""
    with open_to_write(path) as queue:
        queue.schedule(name, times=0)  # raises if there is none
        confirm(f"Remove schedule {name!r} of {path}?", yes=yes)
        queue.remove_schedule(name)
    print_result(json, {"name": name, "removed": True}, f"Schedule {name!r} removed.")


@schedules_app.command("pause")
def pause_schedule(path: QueuePath, name: _ScheduleName, json: AsJson = False) -> None:
    """Skip the ticks of a schedule until `penstock schedules resume`."""
    with open_to_write(path) as queue:
        state = queue.pause_schedule(name)
    print_result(json, _document(state), _sentence(state))


@schedules_app.command("resume")
def resume_schedule(path: QueuePath, name: _ScheduleName, json: AsJson = False) -> None:
    """Let a paused schedule run again, from its next tick on."""
    with open_to_write(path) as queue:
        state = queue.resume_schedule(name)
    print_result(json, _document(state), _sentence(state))


@schedules_app.command("next")
def next_times(
    path: QueuePath,
    name: _ScheduleName,
    count: Annotated[int, option("How many times.", "--count", "-n", min=1, max=MAX_TIMES)] = 10,
    json: AsJson = False,
) -> None:
    """Show the next times of a schedule, in its time zone. Exits with 1 if it does not run."""
    with open_to_read(path) as queue:
        details = queue.schedule(name, times=count)
    state = details.state
    if json:
        times = [at_ns / NS for at_ns in details.next_times_ns]
        print_json({**_document(state), "next_times": times})
        if not times:
            raise typer.Exit(1)
        return
    if not details.next_times_ns:
        exit_no(_sentence(state))
    zone = _zone(state.time_zone)
    for at_ns in details.next_times_ns:
        at = datetime.fromtimestamp(at_ns / NS, zone)
        print_line(at.strftime("%a %Y-%m-%d %H:%M:%S %Z (%z)"))
    if state.trouble:
        print_stderr(state.trouble)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name) if name else UTC
    except (OSError, ValueError, LookupError):  # the broker has it, this machine has not
        return UTC
