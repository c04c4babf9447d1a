"""Names of namespaces, queues and consumer groups, and the directories they get.

Checked before a path, a URL or a label is built from a name. Every interface takes the same names.

On disk a name is a directory. Some file systems do not tell `Emails` from `emails`, and a name with
a dot could be that of a file (`namespace.json`, `x.tmp`). So a few characters are escaped with `+`,
which no name has:

    emails-2      emails-2         a-z, 0-9, - and _ inside stay as they are
    Emails        +emails          a capital letter
    my.queue      my++queue        a dot
    _health       +_health         an underscore in front: the broker's own begin with one
"""

import re
from typing import NamedTuple

from penstock.errors import InvalidInput

DEFAULT_NAMESPACE = "default"
BROKER_DIRECTORY = "_broker"  # in a data directory: documents of the broker itself

PATTERN = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?"
"""Of a whole name. Queues have no name that is one of the views of dead letters, either."""

RULE = "1 to 64 of A-Z, a-z, 0-9, _, - and ., not starting with - or ., not ending with ."

_NAME = re.compile(PATTERN, re.ASCII)
_ESCAPED = re.compile(r"[A-Z.]|\A_", re.ASCII)
_ESCAPE = re.compile(r"\+(.)", re.ASCII)
_ESCAPES = {".": "++", "_": "+_"}
_MEANINGS = {"+": ".", "_": "_"}

# Views of a queue's dead letters: `orders.dlq`, and `__dlq__orders` for clients of EpochQueue.
DEAD_VIEW_SUFFIX = ".dlq"
DEAD_VIEW_PREFIX = "__dlq__"


def check_name(what: str, name: object) -> str:
    """Return the name of a `what` (namespace, queue, group); InvalidInput if it is not one.

    >>> check_name("queue", "orders-2"), check_name("queue", "my.Queue")
    ('orders-2', 'my.Queue')
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is not a {what} name: {RULE}")
    if what == "queue" and (name.endswith(DEAD_VIEW_SUFFIX) or name.startswith(DEAD_VIEW_PREFIX)):
        raise InvalidInput(
            f"{name!r} is not a queue name: names that end with {DEAD_VIEW_SUFFIX} or start with "
            f"{DEAD_VIEW_PREFIX} are kept for the dead letters of a queue"
        )
    return name


def is_name(what: str, name: object) -> bool:
    """Return whether this is a valid name of a `what`."""
    try:
        check_name(what, name)
    except InvalidInput:
        return False
    return True


class QueueName(NamedTuple):
    """A queue's name and that of its namespace."""

    namespace: str
    name: str

    @classmethod
    def checked(cls, namespace: object, name: object) -> "QueueName":
        """Return the name of a queue; raise InvalidInput if a part of it is not a name."""
        return cls(check_name("namespace", namespace), check_name("queue", name))

    @classmethod
    def parse(cls, text: str) -> "QueueName":
        """Return the queue that `orders` (in the default namespace) or `shop/orders` names.

        >>> QueueName.parse("shop/orders")
        QueueName(namespace='shop', name='orders')
        """
        if not isinstance(text, str):
            check_name("queue", text)  # raises
        namespace, slash, name = text.rpartition("/")
        return cls.checked(namespace if slash else DEFAULT_NAMESPACE, name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


# The queue of a directory that is one queue, as its holder serves it to other processes.
ONE_QUEUE = QueueName(DEFAULT_NAMESPACE, "queue")


def directory_of(name: str) -> str:
    """Return the directory of a name. Different names differ even if case is ignored.

    >>> directory_of("orders-2"), directory_of("_My.Queue")
    ('orders-2', '+_+my+++queue')
    """
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[0]) or f"+{found[0].lower()}", name)


def name_of_directory(directory: str) -> str | None:
    """Return the name whose directory this is; None if it is no name's.

    >>> name_of_directory("+_+my+++queue"), name_of_directory("Orders"), name_of_directory("_trash")
    ('_My.Queue', None, None)
    """
    name = _ESCAPE.sub(lambda found: _MEANINGS.get(found[1]) or found[1].upper(), directory)
    return name if _NAME.fullmatch(name) and directory_of(name) == directory else None
