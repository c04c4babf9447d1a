"""`penstock retries`: how often a message was tried, and when it is tried next."""

from typing import Any

from penstock.cli.opening import looking
from penstock.cli.parameters import MAIN, AsJson, InGroup, MessageId, QueuePath
from penstock.cli.terminal import show_facts, write_json
from penstock.cli.words import moment, plain
from penstock.model import RetryInfo


def retries(
    path: QueuePath, message: MessageId, group: InGroup = MAIN, json: AsJson = False
) -> None:
    """Show how often a message was tried, why it failed last, and when it is tried next."""
    with looking(path) as queue:
        info = queue.retry_info(message, group=group)
    if json:
        write_json(_document(info))
        return
    times = {
        "first failure": info.first_failure_at,
        "last failure": info.last_failure_at,
        "next attempt": info.next_attempt_at,
    }
    show_facts(
        [
            ("message", info.id),
            ("group", info.group),
            ("state", info.state),
            ("attempts", f"{info.attempts} of {info.max_attempts}"),
            *([("reason", plain(info.reason))] if info.reason else []),
            *((name, moment(at)) for name, at in times.items() if at is not None),
        ]
    )


def _document(info: RetryInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "group": info.group,
        "state": info.state,
        "attempts": info.attempts,
        "max_attempts": info.max_attempts,
        "reason": info.reason,
        "first_failure_at": info.first_failure_at,
        "last_failure_at": info.last_failure_at,
        "next_attempt_at": info.next_attempt_at,
    }
