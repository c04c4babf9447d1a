"""Commands that publish, take and settle messages: enqueue, dequeue, lease, ack, nack."""

import json as json_module
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import StrEnum
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from typer.core import TyperCommand

from penstock.cli.formatting import leased_json, message_json, number, preview, time_of_day
from penstock.cli.options import (
    MAIN,
    AsJson,
    ContentType,
    Count,
    Headers,
    InGroup,
    Key,
    MaxAttempts,
    PayloadFile,
    PayloadText,
    Priority,
    QueuePath,
    Tenant,
    Ttl,
    argument,
    duration_option,
    option,
    parse_pairs,
    time_option,
)
from penstock.cli.targets import check_exists, open_to_write
from penstock.cli.terminal import (
    exit_no,
    print_json_line,
    print_line,
    print_list,
    print_result,
    print_stderr,
    progress_bar,
    table,
)
from penstock.errors import NotALedger, ReceiptInvalid
from penstock.model import LeasedMessage, Receipt
from penstock.queue import NewMessage
from penstock.queue.facade import AnyQueue

_LINES_PER_BATCH = 1000
_DEQUEUE_BATCH = 100

Receipts = Annotated[
    list[str],
    argument(
        "RECEIPT", "Receipt or JSON printed by `penstock lease`; - reads them from standard input."
    ),
]


# -- enqueue ---------------------------------------------------------------------------------------


class Compression(StrEnum):
    """How a payload may be compressed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


class AfterFailed(StrEnum):
    """What happens to a message if one that it comes after fails."""

    DEAD = "dead"
    RUN = "run"


def enqueue(
    path: QueuePath,
    payload: PayloadText = None,
    file: PayloadFile = None,
    lines: Annotated[
        bool, option("Publish each line of the input as one message.", "--lines")
    ] = False,
    priority: Priority = None,
    delay: Annotated[float | None, duration_option("Deliver after this time.")] = None,
    deliver_at: Annotated[float | None, time_option("Deliver at this time.")] = None,
    ttl: Ttl = None,
    header: Headers = None,
    key: Key = None,
    dedup_id: Annotated[
        str | None, option("Publish only if this id was not published within the window.")
    ] = None,
    dedup_window: Annotated[
        float | None, duration_option("How long the dedup id is remembered.")
    ] = None,
    max_attempts: MaxAttempts = None,
    content_type: ContentType = None,
    compression: Annotated[Compression | None, option("Compression of the stored payload.")] = None,
    after: Annotated[
        list[str] | None,
        option("Deliver when the message with this id is done; may be repeated.", metavar="ID"),
    ] = None,
    after_failed: Annotated[
        AfterFailed | None, option("What happens to it if one of those fails.")
    ] = None,
    tenant: Tenant = None,
    create: Annotated[bool, option("Create the queue if it does not exist.", "--create")] = False,
    json: AsJson = False,
) -> None:
    """Publish a message, or one for each line of the input, and print its id."""
    template = NewMessage(
        payload=b"",
        priority=priority,
        delay=delay,
        deliver_at=deliver_at,
        ttl=ttl,
        headers=parse_pairs(header, "header") or None,
        key=key,
        dedup_id=dedup_id,
        dedup_window_s=dedup_window,
        max_attempts=max_attempts,
        content_type=content_type,
        compression=compression.value if compression else None,
        after=after or None,
        after_failed=after_failed.value if after_failed else None,
        tenant=tenant,
    )
    if lines and dedup_id is not None:
        raise typer.BadParameter("--lines with --dedup-id would publish only the first line")
    with open_input(payload, file) as source, _open_queue(path, create=create) as queue:
        if lines:
            _publish_lines(queue, template, source, json)
        else:
            _publish(queue, [replace(template, payload=source.read())], json)


def _open_queue(path: str, *, create: bool) -> AnyQueue:
    try:
        return open_to_write(path, create=create)
    except NotALedger as error:
        if create:
            raise
        raise NotALedger(f"{error}; --create makes a queue there") from None


def open_input(payload: str | None, file: Path | None) -> AbstractContextManager[BinaryIO]:
    """Return the source of the payload: exactly one of argument, standard input and file."""
    if payload is None and file is None:
        raise typer.BadParameter(
            "give the payload as an argument, as - (standard input) or by --file"
        )
    if payload is not None and file is not None:
        raise typer.BadParameter(
            "the payload is given twice, as an argument and by --file: leave one out"
        )
    if file is not None:
        return file.open("rb")
    assert payload is not None
    if payload == "-":
        return nullcontext(sys.stdin.buffer)  # not ours to close
    return BytesIO(payload.encode(errors="surrogateescape"))


def _publish(queue: AnyQueue, messages: list[NewMessage], as_json: bool) -> None:
    for published in queue.publish(messages):
        if as_json:
            print_json_line(published._asdict())
        else:
            print_line(published.id)
            if published.duplicate:
                print_stderr("not published: the dedup id was seen before, with this message")


def _publish_lines(queue: AnyQueue, template: NewMessage, source: BinaryIO, as_json: bool) -> None:
    done = 0
    with progress_bar(beside_output=True) as progress:
        task = progress.add_task("publishing", total=None)
        while batch := list(islice(source, _LINES_PER_BATCH)):
            messages = [replace(template, payload=line.removesuffix(b"\n")) for line in batch]
            _publish(queue, messages, as_json)
            done += len(batch)
            progress.update(task, description=f"published {number(done)}")


# -- dequeue and lease -----------------------------------------------------------------------------


def dequeue(
    path: QueuePath,
    count: Count = 1,
    everything: Annotated[bool, option("Take all ready messages.", "--all")] = False,
    wait: Annotated[float, duration_option("Maximum time to wait for each message.")] = 0.0,
    group: InGroup = MAIN,
    json: AsJson = False,
) -> None:
    """Take messages from the queue and print their payloads, one per line.

    A message is acked after it is printed: if the output fails, it stays queued.
    Exits with 1 if no message is ready.
    """
    taken = 0
    with open_to_write(path) as queue:
        while everything or taken < count:
            batch = _DEQUEUE_BATCH if everything else min(count - taken, _DEQUEUE_BATCH)
            leased = queue.lease(batch, wait_s=wait, group=group, holder="penstock dequeue")
            if not leased:
                check_exists(queue)
                break
            _print_and_ack(queue, leased, json)
            taken += len(leased)
    if not taken:
        exit_no(f"no message is ready in group {group!r}")


def _print_and_ack(queue: AnyQueue, leased: list[LeasedMessage], as_json: bool) -> None:
    try:
        for job in leased:
            if as_json:
                print_json_line(message_json(job.message))
            else:
                sys.stdout.flush()
                sys.stdout.buffer.write(job.payload + b"\n")
        sys.stdout.flush()
    except BaseException:
        queue.release(leased)
        raise
    queue.ack(leased)


def lease(
    path: QueuePath,
    count: Count = 1,
    lease_s: Annotated[
        float | None,
        duration_option("Duration of the lease. Default: the queue's setting.", "--for"),
    ] = None,
    wait: Annotated[float, duration_option("Maximum time to wait for the first message.")] = 0.0,
    dead: Annotated[
        bool, option("Lease dead letters; an ack removes them for good.", "--dead")
    ] = False,
    group: InGroup = MAIN,
    json: AsJson = False,
) -> None:
    """Lease messages and print them with their receipts, for `penstock ack` and `penstock nack`.

    A message that is not settled before its lease ends is delivered again.
    Exits with 1 if no message is ready.
    """
    if dead and wait:
        raise typer.BadParameter("--dead cannot be combined with --wait")
    holder = "penstock lease"
    with open_to_write(path) as queue:
        if dead:
            leased = queue.lease_dead(count, lease_s=lease_s, group=group, holder=holder)
        else:
            leased = queue.lease(count, lease_s=lease_s, wait_s=wait, group=group, holder=holder)
        if not leased:
            check_exists(queue)
    if not leased:
        exit_no(f"no {'dead letter' if dead else 'message'} is ready in group {group!r}")
    made = table("receipt", "attempt", "until", "payload", right=["attempt"], rest="payload")

    def row(job: LeasedMessage) -> list[str]:
        until = time_of_day(job.deadline)
        return [job.receipt, str(job.attempt), until, preview(job.payload)]

    print_list(leased, json, leased_json, made, row)


# -- ack and nack ----------------------------------------------------------------------------------


class SettleCommand(TyperCommand):
    """A command whose arguments are receipts: one that begins with `-` is not an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        like_options = [one for one in args if one.startswith("-") and _is_receipt(one)]
        if like_options and "--" not in args:
            args = [*(one for one in args if one not in like_options), "--", *like_options]
        return super().parse_args(ctx, args)


def ack(path: QueuePath, receipts: Receipts, json: AsJson = False) -> None:
    """Mark leased messages as done, by their receipts."""
    found = parse_receipts(receipts)
    with open_to_write(path) as queue:
        queue.ack(found)
    print_result(json, {"acked": len(found)}, f"{number(len(found), 'message')} acked.")


def nack(
    path: QueuePath,
    receipts: Receipts,
    reason: Annotated[str, option("Reason of the failure.", "--reason", "-r", metavar="TEXT")] = "",
    delay: Annotated[
        float | None, duration_option("Delay of the next attempt, instead of the backoff.")
    ] = None,
    release: Annotated[
        bool, option("Return the messages without using an attempt.", "--release")
    ] = False,
    json: AsJson = False,
) -> None:
    """Mark leased messages as failed: each is retried later, or becomes a dead letter."""
    if release and (reason or delay is not None):
        raise typer.BadParameter("--release cannot be combined with --reason or --delay")
    found = parse_receipts(receipts)
    with open_to_write(path) as queue:
        if release:
            queue.release(found)
        else:
            queue.nack(found, reason, delay=delay)
    verb = "released" if release else "nacked"
    print_result(json, {verb: len(found)}, f"{number(len(found), 'message')} {verb}.")


def _is_receipt(text: str) -> bool:
    try:
        Receipt.unpack(text)
    except ReceiptInvalid:
        return False
    return True


def parse_receipts(arguments: Iterable[str]) -> list[str]:
    """Return the receipts of arguments; `-` stands for the lines of standard input.

    >>> parse_receipts(["r1", '{"id": "…", "receipt": "r2"}', '["r3", {"receipt": "r4"}]'])
    ['r1', 'r2', 'r3', 'r4']
    """
    found: list[str] = []
    for one in arguments:
        text = sys.stdin.read() if one == "-" else one
        for line in text.splitlines():
            found += _receipts_of_line(line.strip())
    if not found:
        raise typer.BadParameter("there is no receipt on standard input")
    return found


def _receipts_of_line(line: str) -> Iterator[str]:
    if not line.startswith(("{", "[")):
        if line:
            yield line
        return
    try:
        value = json_module.loads(line)
    except ValueError as error:
        raise typer.BadParameter(f"{line[:40]!r} is neither a receipt nor JSON: {error}") from None
    for one in value if isinstance(value, list) else [value]:
        receipt = one.get("receipt") if isinstance(one, dict) else one
        if not isinstance(receipt, str):
            raise typer.BadParameter(f"{json_module.dumps(one)[:40]!r} has no receipt")
        yield receipt
