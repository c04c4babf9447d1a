"""What a published message changes about a group."""

from collections.abc import Mapping, Sequence

from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.codec.notes_py import Note
from penstock.queue.attributes import AFTER, TENANT
from penstock.queue.delivery import Delivery, State
from penstock.queue.events import MAIN_GROUP
from penstock.queue.group import Group
from penstock.queue.group_after import feed_after

_STATE_READY = State.READY


def feed_plain(group: Group, first: int, end: int) -> None:
    """Add messages [first, end) of the default priority, due at once, without key."""
    group.waiting.add_plain(first, end)
    group.fed_upto = end


def feed(
    group: Group,
    seq: int,
    *,
    priority: int,
    published_ns: int,
    deliver_at_ns: int,
    key: bytes | None,
    expires_at_ns: int = 0,
    attributes: Mapping[int, bytes] | None = None,
) -> None:
    """Add any other message."""
    due_ns = deliver_at_ns if deliver_at_ns > published_ns else 0
    group.fed_upto = seq + 1
    if group.fair is not None and attributes is not None:
        group.fair.join(seq, attributes.get(TENANT))
    if attributes is not None and AFTER in attributes and group.number == MAIN_GROUP:
        delivery = group.deliveries[seq] = Delivery(_STATE_READY, priority, due_ns, key)
        if expires_at_ns:
            delivery.expires_at_ns = expires_at_ns
            group.expiries.add(expires_at_ns, seq)
        feed_after(group, seq, delivery, attributes[AFTER], published_ns)
        return
    if key is not None:
        delivery = group.deliveries[seq] = Delivery(_STATE_READY, priority, due_ns, key)
        if expires_at_ns:
            delivery.expires_at_ns = expires_at_ns
            group.expiries.add(expires_at_ns, seq)
        if not group.keyed.order.join(key, seq):
            group.keyed.park(seq, delivery)
        elif due_ns:
            group.waiting.schedule(seq, delivery, due_ns)
        else:
            group.waiting.add_fresh(priority, seq, is_new=True)
    elif due_ns:
        group.waiting.add_delayed(seq, due_ns, priority)
    else:
        group.waiting.add_fresh(priority, seq, is_new=True)


def feed_noted(group: Group, first: int, end: int, noted: Sequence[Note]) -> None:
    """Add messages [first, end): those that were noted, and plain ones between them."""
    waiting = group.waiting
    # No order to keep, so by priority.
    together = not waiting.upcoming.seqs and group.fair is None
    fresh: list[list[int]] = [[] for _ in waiting.lanes]
    for seq, published_ns, priority, deliver_at_ns, key, attributes, expires_at_ns in noted:
        if seq < first:
            continue
        if seq > first:
            waiting.add_plain(first, seq)
        first = seq + 1
        is_after = attributes is not None and AFTER in attributes
        if is_after and together:  # it may come after some of those that were put off
            _add_put_off(group, fresh)
        if key is not None or deliver_at_ns > published_ns or is_after or group.fair is not None:
            feed(
                group,
                seq,
                priority=priority,
                published_ns=published_ns,
                deliver_at_ns=deliver_at_ns,
                key=key,
                expires_at_ns=expires_at_ns,
                attributes=attributes,
            )
        elif together and priority != DEFAULT_PRIORITY:
            fresh[priority].append(seq)
        else:
            waiting.add_fresh(priority, seq, is_new=True)
    _add_put_off(group, fresh)
    if first < end:
        waiting.add_plain(first, end)
    group.fed_upto = end


def _add_put_off(group: Group, fresh: list[list[int]]) -> None:
    for priority, seqs in enumerate(fresh):
        if seqs:
            group.waiting.add_all_fresh(priority, seqs)
            seqs.clear()
