"""Which queue of a broker, and where its calls go. A client needs no broker installed."""

from typing import NamedTuple

from penstock.names import DEFAULT_NAMESPACE, check_name


class QueueName(NamedTuple):
    """Which queue of which namespace."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "QueueName":
        """`orders` (in the default namespace) or `shop/orders`.

        >>> QueueName.parse("shop/orders")
        QueueName(namespace='shop', name='orders')
        """
        namespace, slash, name = text.rpartition("/")
        return cls(
            check_name("namespace", namespace if slash else DEFAULT_NAMESPACE),
            check_name("queue", name),
        )

    @property
    def path(self) -> str:
        """Where its calls go, below the broker's address."""
        return f"/api/v1/namespaces/{self.namespace}/queues/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
