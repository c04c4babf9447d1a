"""Which queue of which namespace."""

from typing import NamedTuple

from penstock.names import DEFAULT_NAMESPACE, check_name


class QueueName(NamedTuple):
    """Which queue of which namespace."""

    namespace: str
    name: str

    @classmethod
    def checked(cls, namespace: object, name: object) -> "QueueName":
        return cls(check_name("namespace", namespace), check_name("queue", name))

    @classmethod
    def parse(cls, text: str) -> "QueueName":
        """`orders` (in the default namespace) or `shop/orders`.

        >>> QueueName.parse("shop/orders")
        QueueName(namespace='shop', name='orders')
        """
        namespace, slash, name = text.rpartition("/")
        return cls.checked(namespace if slash else DEFAULT_NAMESPACE, name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
