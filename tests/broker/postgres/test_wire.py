"""Values that travel between brokers arrive as they were."""

import inspect
from typing import Any

import pytest

from penstock import errors, operations
from penstock.broker.postgres import wire
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Outcome, QueueInfo, Settlement
from penstock.errors import BadEntry, NoSuchQueue, RateLimited
from penstock.model import NewMessage, Published, TypedPayload
from penstock.names import QueueName

ORDERS = QueueName("shop", "orders")


def sent(value: object) -> Any:
    """Return a value as it arrives."""
    (found,) = wire.decode(wire.encode([wire.packed(value)]))
    return found


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, "text", b"bytes", 2.5, True],
        (1, ("nested", [])),
        {"a": {"b": (1, 2)}},
        [Published("id", duplicate=True)],
        NewMessage(payload=b"x", key="k", headers={"a": "b"}, delay=1.5),
        TypedPayload(b"x", "text/plain"),
        Settlement("nack", "receipt", reason="no", delay_s=2.0),
        Outcome("receipt", "done", ids=["a"]),
        QueueInfo(ORDERS, 7, 8, BrokerSettings().queue_settings({"max_attempts": 3})),
        operations.Browse(state="ready", limit=7).with_internal("max_bytes", 5),
        operations.Redrive(),
    ],
)
def test_a_value_arrives_as_it_was(value: object) -> None:
    found = sent(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "error", [NoSuchQueue("there is none"), RateLimited("wait", 2.5), BadEntry(4, "torn")]
)
def test_an_error_arrives_with_its_attributes(error: Exception) -> None:
    found = sent(error)
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_every_operation_and_error_is_known() -> None:
    for one in vars(operations).values():
        if inspect.isclass(one) and issubclass(one, operations.Operation):
            assert one in (operations.Operation, operations.MessageOperation) or one.__name__ in (
                wire.KNOWN
            )
    assert isinstance(sent(OSError("disk")), errors.Unavailable)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xa3foo", b"\x91\x91\xa8Unknown!", b"\x91\x92\x03\xa3foo"]
)
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        wire.decode(data)
