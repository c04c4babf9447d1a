"""The attributes of queues: their limits, and which settings of Penstock they are.

Some attributes are settings of the queue itself, so every interface obeys them. The others are kept
in a record of SQS's own; see `records`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.broker import QueueName
from penstock.broker.store import QueueInfo
from penstock.model import NS
from penstock.server.sqs.errors import SqsError, invalid_value
from penstock.server.sqs.names import arn_of_queue, is_fifo, queue_of_arn
from penstock.server.sqs.records import Record

MAX_MESSAGE_BYTES = 1 << 20
MAX_VISIBILITY_S = 12 * 3600
MAX_DELAY_S = 900
MAX_WAIT_S = 20
MAX_RETENTION_S = 14 * 86400
MAX_RECEIVE_COUNT = 1000
UNLIMITED_ATTEMPTS = 65_535
SHORTEST_LEASE_S = 0.001  # a visibility timeout of 0: the message is ready again at once
DEDUP_WINDOW_S = 300.0


class _Number(NamedTuple):
    low: int
    high: int
    default: int


NUMBERS: Mapping[str, _Number] = {
    "DelaySeconds": _Number(0, MAX_DELAY_S, 0),
    "MaximumMessageSize": _Number(1024, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES),
    "MessageRetentionPeriod": _Number(60, MAX_RETENTION_S, 4 * 86400),
    "ReceiveMessageWaitTimeSeconds": _Number(0, MAX_WAIT_S, 0),
    "VisibilityTimeout": _Number(0, MAX_VISIBILITY_S, 30),
}
_CHOICES = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
    "ContentBasedDeduplication": ("false", "true"),
}
_FIFO_ONLY = frozenset(_CHOICES)
_COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_READ_ONLY = frozenset({*_COUNTS, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"})
# Accepted only with the value that they have here anyway.
_UNSUPPORTED = {
    "Policy": "",
    "KmsMasterKeyId": "",
    "KmsDataKeyReusePeriodSeconds": "300",
    "SqsManagedSseEnabled": "false",
}
_ALLOW_KINDS = ("allowAll", "denyAll", "byQueue")
MAX_ALLOWED_SOURCES = 10
NAMES = frozenset(
    {*NUMBERS, *_CHOICES, *_READ_ONLY, *_UNSUPPORTED, "FifoQueue", "RedrivePolicy"}
    | {"RedriveAllowPolicy"}
)
_WHOLE = re.compile(r"[0-9]{1,10}", re.ASCII)


class Change(NamedTuple):
    """What attributes that a client sets mean: settings of the queue, and fields of its record."""

    settings: dict[str, Any]
    record: dict[str, Any]


def new_queue_settings() -> dict[str, Any]:
    """Return the settings of a queue that is created by SQS, where attributes say nothing."""
    return {
        "lease_s": float(NUMBERS["VisibilityTimeout"].default),
        "default_ttl_s": float(NUMBERS["MessageRetentionPeriod"].default),
        "max_payload_bytes": MAX_MESSAGE_BYTES,
        "max_attempts": UNLIMITED_ATTEMPTS,
        "backoff_base_s": 0.0,
        "dedup_window_s": DEDUP_WINDOW_S,
    }


# -- what a client sets ----------------------------------------------------------------------------


def read_attributes(queue: QueueName, given: Mapping[str, str]) -> Change:
    """Check attributes. Return what they mean. Raise an error of SQS if one is not allowed."""
    change = Change({}, {})
    for name, value in given.items():
        if name not in NAMES or name in _READ_ONLY:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        if name in NUMBERS:
            _read_number(name, value, change)
        elif name in _CHOICES:
            _read_choice(queue, name, value, change)
        elif name in _UNSUPPORTED:
            if value != _UNSUPPORTED[name]:
                raise SqsError(
                    "UnsupportedOperation", f"The attribute {name} is not supported by this server."
                )
        elif name == "FifoQueue":
            if value != "true" or not is_fifo(queue):
                raise invalid_attribute(name, "it is true, of a queue whose name ends with .fifo")
        elif name == "RedrivePolicy":
            _read_redrive_policy(queue, value, change)
        else:
            change.record["allow_sources"] = _read_allow_policy(value)
    return change


def invalid_attribute(name: str, reason: str = "") -> SqsError:
    text = f"Invalid value for the parameter {name}."
    return SqsError("InvalidAttributeValue", f"{text} Reason: {reason}" if reason else text)


def _read_number(name: str, text: str, change: Change) -> None:
    low, high, _ = NUMBERS[name]
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise invalid_attribute(name)
    value = int(text)
    if name == "VisibilityTimeout":
        change.settings["lease_s"] = max(float(value), SHORTEST_LEASE_S)
    elif name == "MessageRetentionPeriod":
        change.settings["default_ttl_s"] = float(value)
    elif name == "MaximumMessageSize":
        change.settings["max_payload_bytes"] = value
        change.record["max_bytes"] = value
    elif name == "DelaySeconds":
        change.record["delay_s"] = value
    else:
        change.record["wait_s"] = value


def _read_choice(queue: QueueName, name: str, value: str, change: Change) -> None:
    if not is_fifo(queue):
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    first, second = _CHOICES[name]
    if value not in (first, second):
        raise invalid_attribute(name)
    field = {
        "DeduplicationScope": "dedups_by_group",
        "FifoThroughputLimit": "has_group_throughput",
        "ContentBasedDeduplication": "dedups_by_content",
    }[name]
    change.record[field] = value == second


def _read_redrive_policy(queue: QueueName, text: str, change: Change) -> None:
    """Read a policy; an empty one removes it."""
    name = "RedrivePolicy"
    if not text:
        change.record["dead_queue"] = ""
        change.settings["max_attempts"] = UNLIMITED_ATTEMPTS
        return
    policy = _read_json(name, text)
    if not policy.keys() >= {"deadLetterTargetArn", "maxReceiveCount"}:
        raise invalid_value(
            name,
            text,
            "Redrive policy does not contain mandatory attribute: "
            "deadLetterTargetArn and maxReceiveCount.",
        )
    count = str(policy["maxReceiveCount"])
    if not _WHOLE.fullmatch(count) or not 1 <= int(count) <= MAX_RECEIVE_COUNT:
        raise invalid_value(
            name, text, f"Invalid value for maxReceiveCount: it is 1 to {MAX_RECEIVE_COUNT}."
        )
    target = queue_of_arn(str(policy["deadLetterTargetArn"]))
    if target is None or target.namespace != queue.namespace:
        raise invalid_value(
            name, text, "the dead-letter queue is one of the same account, named by its ARN."
        )
    if is_fifo(target) != is_fifo(queue):
        raise invalid_value(
            name, text, "Dead-letter queue must be same type of queue as the source."
        )
    if target == queue:
        raise invalid_value(name, text, "a queue cannot be its own dead-letter queue.")
    change.record["dead_queue"] = target.name
    change.settings["max_attempts"] = int(count)


def _read_allow_policy(text: str) -> dict[str, Any]:
    """Read a policy; an empty one removes it."""
    name = "RedriveAllowPolicy"
    if not text:
        return {}
    policy = _read_json(name, text)
    kind, arns = policy.get("redrivePermission"), policy.get("sourceQueueArns")
    if kind not in _ALLOW_KINDS or (kind == "byQueue") != (arns is not None):
        raise invalid_value(name, text, "redrivePermission, or sourceQueueArns, is not valid.")
    if arns is not None and (
        not isinstance(arns, list)
        or not 1 <= len(arns) <= MAX_ALLOWED_SOURCES
        or not all(isinstance(arn, str) and queue_of_arn(arn) for arn in arns)
    ):
        raise invalid_value(
            name, text, f"sourceQueueArns has 1 to {MAX_ALLOWED_SOURCES} ARNs of queues."
        )
    return {key: policy[key] for key in ("redrivePermission", "sourceQueueArns") if key in policy}


def _read_json(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid_value(name, text, "it is not a JSON object.")
    return value


def allows_source(record: Record, source: QueueName) -> bool:
    """Return whether the record of a dead-letter queue allows a queue to name it."""
    policy = record.allow_sources
    if policy.get("redrivePermission") == "denyAll":
        return False
    arns = policy.get("sourceQueueArns")
    return arns is None or source in [queue_of_arn(arn) for arn in arns]


# -- what a client reads ---------------------------------------------------------------------------


def attributes_of(info: QueueInfo, record: Record, region: str) -> dict[str, str]:
    """Return all attributes of a queue but the counts of its messages."""
    settings, queue = info.settings, info.queue
    created_s = info.created_at_ns // NS
    retention_s = round(settings.default_ttl_s) or MAX_RETENTION_S
    found = {
        "VisibilityTimeout": str(min(int(settings.lease_s), MAX_VISIBILITY_S)),
        "MaximumMessageSize": str(min(settings.max_payload_bytes, record.max_bytes)),
        "MessageRetentionPeriod": str(min(max(retention_s, 60), MAX_RETENTION_S)),
        "DelaySeconds": str(record.delay_s),
        "ReceiveMessageWaitTimeSeconds": str(record.wait_s),
        "CreatedTimestamp": str(created_s),
        "LastModifiedTimestamp": str(max(record.modified_s, created_s)),
        "QueueArn": arn_of_queue(region, queue),
        "SqsManagedSseEnabled": "false",
    }
    if is_fifo(queue):
        found["FifoQueue"] = "true"
        found["ContentBasedDeduplication"] = "true" if record.dedups_by_content else "false"
        found["DeduplicationScope"] = _CHOICES["DeduplicationScope"][record.dedups_by_group]
        found["FifoThroughputLimit"] = _CHOICES["FifoThroughputLimit"][record.has_group_throughput]
    if record.dead_queue:
        target = QueueName(queue.namespace, record.dead_queue)
        policy = {
            "deadLetterTargetArn": arn_of_queue(region, target),
            "maxReceiveCount": settings.max_attempts,
        }
        found["RedrivePolicy"] = _compact(policy)
    if record.allow_sources:
        found["RedriveAllowPolicy"] = _compact(record.allow_sources)
    return found


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def shown_counts(visible: int, hidden: int, delayed: int) -> dict[str, str]:
    """Return the attributes that count messages."""
    return dict(zip(_COUNTS, map(str, (visible, hidden, delayed)), strict=True))


def needs_counts(names: frozenset[str]) -> bool:
    """Return whether one of these attributes is a count of messages."""
    return "All" in names or not names.isdisjoint(_COUNTS)


def is_same(name: str, given: str, found: Mapping[str, str]) -> bool:
    """Return whether an existing queue has an attribute as a client wants it."""
    present = found.get(name, _UNSUPPORTED.get(name, ""))
    if name in ("RedrivePolicy", "RedriveAllowPolicy") and given and present:
        wanted, has = json.loads(given), json.loads(present)
        if name == "RedrivePolicy":
            return (
                queue_of_arn(str(wanted["deadLetterTargetArn"]))
                == queue_of_arn(has["deadLetterTargetArn"])
                and int(wanted["maxReceiveCount"]) == has["maxReceiveCount"]
            )
        return bool(wanted == has)
    return given == present
