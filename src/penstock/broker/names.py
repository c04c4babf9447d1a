"""Names of namespaces, queues and groups. Checked before anything is built from one."""

import re
from typing import NamedTuple

from penstock.errors import InvalidInput

DEFAULT_NAMESPACE = "default"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


def check_name(what: str, name: object) -> str:
    """1 to 64 of a-z, 0-9 and -, not starting with -; refused otherwise.

    >>> check_name("queue", "orders-2")
    'orders-2'
    """
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
