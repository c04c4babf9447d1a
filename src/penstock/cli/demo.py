"""`penstock demo`: fill a broker with lively traffic."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from penstock.cli.formatting import duration
from penstock.cli.options import AsJson, argument, duration_option, option
from penstock.cli.started_broker import started_broker, stopped_like_ctrl_c
from penstock.cli.terminal import print_json, print_stderr, print_text
from penstock.client import is_url
from penstock.errors import InvalidInput
from penstock.extras import requires_extra

if TYPE_CHECKING:
    from penstock.demo import Counts


def demo(
    broker: Annotated[
        str | None,
        argument("BROKER", "URL of a broker. Default: one that is started in a new directory."),
    ] = None,
    seconds: Annotated[float, duration_option("Stop after this time.", "--seconds")] = 300.0,
    namespace: Annotated[str, option("Namespace of the queues; a new one.")] = "demo",
    port: Annotated[
        int, option("Port of the broker that is started; 0: any free one.", min=0, max=65535)
    ] = 0,
    json: AsJson = False,
) -> None:
    """Fill a broker with traffic, so that every page of its dashboard shows something.

    Publishers, workers of which some fail, delays, priorities, keys, dead
    letters, groups, schedules, workflows and a webhook. Ctrl-C or SIGTERM stops
    it. The broker that it starts is stopped and removed with it.
    """
    with requires_extra("tasks"):
        from penstock.demo import Counts, run_demo
    if broker is not None and not is_url(broker):
        raise InvalidInput(
            f"{broker!r} is not a URL; name a broker, http://127.0.0.1:8080, or leave it out"
        )
    counts = Counts()
    key = os.environ.get("PENSTOCK_KEY")
    try:
        with stopped_like_ctrl_c(), _started(port) if broker is None else _running(broker) as url:
            text = f"traffic for {duration(seconds)}: open {url} in a browser; Ctrl-C stops it"

            async def traffic() -> None:
                print_stderr(text)  # not earlier: from here on a signal cancels this
                await run_demo(url, namespace=namespace, seconds=seconds, key=key, counts=counts)

            asyncio.run(traffic())
    except KeyboardInterrupt:
        pass  # what was done until then is reported
    _report(counts, broker, namespace, as_json=json)


def _report(counts: "Counts", broker: str | None, namespace: str, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(counts))
        return
    for note in counts.notes:
        print_stderr(note)
    print_text(
        f"{counts.published:,} messages published, {counts.acked:,} acked, {counts.failed:,} "
        f"failed attempts, {counts.abandoned:,} abandoned leases, {counts.redriven:,} redriven, "
        f"{counts.workflows:,} workflows, {counts.called:,} webhook calls"
    )
    if broker is not None:
        print_text(
            f"The queues stay. To remove them: "
            f"penstock namespaces delete {broker} {namespace} --force --yes"
        )


@contextmanager
def _running(url: str) -> Iterator[str]:
    yield url


@contextmanager
def _started(port: int) -> Iterator[str]:
    """Run a broker on a temporary directory."""
    allow = {"PENSTOCK_BROKER_WEBHOOK_ALLOW_PRIVATE": "true"}  # the receiver is on this machine
    with (
        TemporaryDirectory(prefix="penstock-demo-") as data,
        started_broker(data, port=port, settings=allow) as url,
    ):
        yield url
