"""What a queue would refuse, found out before it is made: a bad call makes nothing."""

from collections.abc import Sequence

from penstock.broker.names import QueueName
from penstock.broker.store import Publishable
from penstock.checking import check_number
from penstock.errors import NoSuchGroup
from penstock.model import MAIN_GROUP_NAME
from penstock.queue.delivering import check_count
from penstock.queue.drafting import check_messages
from penstock.queue.parts import as_new
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S, QueueSettings


def check_first_publish(
    messages: Sequence[Publishable], settings: QueueSettings, now_ns: int
) -> None:
    """`settings` are those that the queue would begin with."""
    check_messages(as_new(messages), settings, now_ns)


def check_first_lease(queue: QueueName, n: int, lease_s: float | None, group: str) -> None:
    check_count(n)
    if lease_s is not None:
        check_number("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S)
    if group != MAIN_GROUP_NAME:
        raise NoSuchGroup(f"there is no group {group!r}: neither is there a queue {queue}")
