"""`penstock enqueue`: publish messages."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import StrEnum
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from penstock.cli.opening import writing
from penstock.cli.parameters import AsJson, QueuePath
from penstock.cli.terminal import complain, open_progress, write_json_line, write_line
from penstock.cli.words import number, seconds_of, time_of
from penstock.errors import NotALedger
from penstock.queue import NewMessage, Queue

_LINES_AT_A_TIME = 1000


class Method(StrEnum):
    """How a payload may be compressed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


def enqueue(
    path: QueuePath,
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="The payload; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read the payload from a file."),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of the input is a message of its own.")
    ] = False,
    priority: Annotated[
        int | None, typer.Option("--priority", "-p", help="0 to 9, higher first.")
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=seconds_of, help="Deliver after so long."),
    ] = None,
    deliver_at: Annotated[
        float | None, typer.Option(metavar="TIME", parser=time_of, help="Deliver at this time.")
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=seconds_of, help="Expires after so long."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Messages with the same key go one at a time, in order.")
    ] = None,
    dedup_id: Annotated[
        str | None, typer.Option(help="Publish only if this was not seen within the window.")
    ] = None,
    dedup_window: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=seconds_of, help="How long the dedup id is known."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="After so many failures it is a dead letter.")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option(help="What the payload is, such as application/json.")
    ] = None,
    compression: Annotated[Method | None, typer.Option(help="How it is stored.")] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the queue if there is none.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Publish a message, or one for each line, and print its id."""
    template = NewMessage(
        payload=b"",
        priority=priority,
        delay=delay,
        deliver_at=deliver_at,
        ttl=ttl,
        headers=_headers(header or []),
        key=key,
        dedup_id=dedup_id,
        dedup_window_s=dedup_window,
        max_attempts=max_attempts,
        content_type=content_type,
        compression=compression.value if compression else None,
    )
    if lines and dedup_id is not None:
        raise typer.BadParameter("--lines with --dedup-id would publish the first line only")
    with _input(payload, file) as source, _open(path, create=create) as queue:
        if lines:
            _publish_lines(queue, template, source, json=json)
        else:
            _publish(queue, [replace(template, payload=source.read())], json=json)


def _open(path: str, *, create: bool) -> Queue:
    try:
        return writing(path, create=create)
    except NotALedger as error:
        if create:
            raise
        raise NotALedger(f"{error}; --create makes a queue there") from None


def _input(payload: str | None, file: Path | None) -> AbstractContextManager[BinaryIO]:
    """Where the payload comes from: exactly one of argument, standard input and file."""
    if (payload is None) == (file is None):
        raise typer.BadParameter(
            "give the payload as an argument, as - (standard input) or by --file"
        )
    if file is not None:
        return file.open("rb")
    assert payload is not None
    if payload == "-":
        return nullcontext(sys.stdin.buffer)  # not ours to close
    return BytesIO(payload.encode(errors="surrogateescape"))


def _headers(pairs: list[str]) -> dict[str, str] | None:
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not a header; write NAME=VALUE")
        headers[name] = value
    return headers or None


def _publish(queue: Queue, messages: list[NewMessage], *, json: bool) -> None:
    for published in queue.publish(messages):
        if json:
            write_json_line(published._asdict())
        else:
            write_line(published.id)
            if published.duplicate:
                complain("not published again: its dedup id was seen before, as this message")


def _publish_lines(queue: Queue, template: NewMessage, source: BinaryIO, *, json: bool) -> None:
    done = 0
    with open_progress(beside_output=True) as progress:
        task = progress.add_task("publishing", total=None)
        while batch := list(islice(_lines(source), _LINES_AT_A_TIME)):
            _publish(queue, [replace(template, payload=line) for line in batch], json=json)
            done += len(batch)
            progress.update(task, description=f"published {number(done)}")


def _lines(source: BinaryIO) -> Iterator[bytes]:
    return (line.removesuffix(b"\n") for line in source)
