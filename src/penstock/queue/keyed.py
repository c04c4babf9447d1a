"""Messages with keys: of each key the first waits for its delivery, the others are parked."""

from collections.abc import Mapping

from penstock.queue.delivery import Delivery, Lease, State
from penstock.queue.key_order import KeyOrder
from penstock.queue.waiting import Waiting


class Keyed:
    """The messages of a group that have a key. Pure: no file, no clock, no lock."""

    __slots__ = ("_deliveries", "_leases", "_waiting", "order", "parked")

    def __init__(
        self, waiting: Waiting, deliveries: Mapping[int, Delivery], leases: Mapping[int, Lease]
    ) -> None:
        self._waiting = waiting
        self._deliveries = deliveries
        self._leases = leases
        self.order = KeyOrder()
        self.parked = 0

    def join(self, seq: int, delivery: Delivery, key: bytes) -> None:
        """Wait until it is the first of its key, which may be now."""
        if self.order.join(key, seq):
            self._waiting.schedule(seq, delivery, delivery.due_ns)
        else:
            self.park(seq, delivery)

    def leave(self, seq: int, delivery: Delivery) -> None:
        """Leave the order, parked or not. The next of the key may be delivered."""
        if delivery.key is None:
            return
        self.parked -= delivery.state is State.PARKED
        following = self.order.leave(delivery.key, seq)
        if following is not None:
            self.unpark(following)

    def keep_order(self, delivery: Delivery) -> None:
        """If the first of a key is neither leased nor the lowest, let the lowest go first."""
        first = None if delivery.key is None else self.order.first_behind(delivery.key)
        if first is None or first in self._leases:
            return
        assert delivery.key is not None
        self._waiting.take(first)
        following = self.order.leave(delivery.key, first)
        assert following is not None
        self.join(first, self._deliveries[first], delivery.key)
        self.unpark(following)

    def park(self, seq: int, delivery: Delivery) -> None:
        """Let a message wait for others of its key."""
        self._waiting.park(seq, delivery)
        self.parked += 1

    def unpark(self, seq: int) -> None:
        """Let a parked message wait for its delivery: it is the first of its key now."""
        self.parked -= 1
        self._waiting.unpark(seq, self._deliveries[seq])
