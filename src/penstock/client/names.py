"""Names of namespaces, queues and groups, checked before a path is built from one.

The broker judges them itself; this is here so that a client needs nothing of a broker installed.
A test holds the two together.
"""

import re
from typing import NamedTuple

from penstock.errors import InvalidInput

DEFAULT_NAMESPACE = "default"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


def check_name(what: str, name: object) -> str:
    """The name, if it is one: 1 to 64 of a-z, 0-9 and -, not starting with -."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a {what} name: 1 to 64 of a-z, 0-9 and -, not starting with -"
        )
    return name


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
