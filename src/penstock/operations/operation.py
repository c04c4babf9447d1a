"""An operation is a value: one verb, with everything that the layers know about it.

    Seek(to="beginning", group="audit")

A class says once which right the operation needs (`verb`), where it may run (`runs`), whether it
changes anything (`writes`), whether it may be sent twice (`idempotent`), how it travels over HTTP
(`route`) and what its answer is (`answer`). Its fields are its arguments, their annotations the
checks. The broker, the stores, the clients and the HTTP routes dispatch on the class, so that a new
verb is a class here and a handler in each store.

Publishing, leasing and settling are not operations: they have calls of their own, for speed.
"""

from collections.abc import Iterable
from dataclasses import fields
from enum import Enum, StrEnum
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_type_hints,
)

from penstock.checking import check_choice, check_number, check_time, check_whole
from penstock.errors import InvalidInput
from penstock.names import check_name
from penstock.operations.answers import Answer

A_co = TypeVar("A_co", covariant=True)

MAX_TIME_S = 9e9  # Unix seconds: the year 2255
MAX_NAMED_IDS = 10_000
MAX_SEQ = (1 << 63) - 1


class Verb(StrEnum):
    """A right that an API key may have."""

    PUBLISH = "publish"
    CONSUME = "consume"  # lease, settle, seek
    MANAGE = "manage"  # namespaces, queues, settings, webhooks, dead letters, keys
    READ = "read"  # look, without changing anything


class Runs(Enum):
    """Where a store that reads files may run an operation."""

    LOOP = "loop"  # no reading: in the event loop
    THREAD = "thread"  # reads from the log: in a thread, beside other calls
    ALONE = "alone"  # holds the queue's lock for long: in a thread, other calls of the queue wait


class Route(NamedTuple):
    """How an operation is asked for over HTTP.

    Fields named in `path` travel there, the others in the query string (GET, DELETE) or in a JSON
    body.
    """

    method: str
    path: str  # below the queue; of a message operation, below the message
    status: int = 200


class Operation(Generic[A_co]):
    """The base of all operations of a queue. `A_co` is the type of the answer."""

    __slots__ = ()

    verb: ClassVar[Verb]
    answer: ClassVar[Answer[Any]]
    route: ClassVar[Route | None] = None  # None: not offered over HTTP by itself
    runs: ClassVar[Runs] = Runs.THREAD
    writes: ClassVar[bool] = False  # answered when the change is durable
    is_durable: ClassVar[bool] = False  # changes nothing; answered when what it says is durable
    idempotent: ClassVar[bool] = True  # a client may send it again after a broken connection
    bounded: ClassVar[bool] = False  # its field `max_bytes` limits the answer
    creates_queue: ClassVar[bool] = False  # a queue that does not exist is created (create_on_use)
    instead: ClassVar[str] = ""  # for stores and brokers only; a queue has these methods instead

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, default, check in _checks(kind):
            value = getattr(self, name)
            if value is default:
                continue
            checked = check(name, value)
            if checked is not value:
                object.__setattr__(self, name, checked)

    def with_internal(self, name: str, value: object) -> Self:
        """Return a copy with an internal field set, such as `max_bytes`."""
        kind: Any = type(self)
        copied: Self = object.__new__(kind)
        for each in _field_names(kind):
            object.__setattr__(copied, each, value if each == name else getattr(self, each))
        return copied


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


class MessageOperation(Operation[A_co]):
    """An operation on one message. Its `id` identifies the queue as well."""

    __slots__ = ()
    id: str


def check_operation(operation: object) -> None:
    """Raise InvalidInput if it is not an operation that every kind of queue runs."""
    if isinstance(operation, type) and issubclass(operation, Operation):
        raise InvalidInput(f"{operation.__name__} is a class: give a value, {operation.__name__}()")
    if not isinstance(operation, Operation) or not hasattr(operation, "answer"):
        raise InvalidInput(
            f"run takes an operation of penstock.operations, such as Seek('end'), not {operation!r}"
        )
    if operation.instead:
        raise InvalidInput(
            f"{type(operation).__name__} is an operation of brokers: use {operation.instead}"
        )


# -- checks of fields; those of an optional field pass None ----------------------------------------


class Between(NamedTuple):
    """A number from `low` to `high`, whole if the bounds are."""

    low: float
    high: float

    def __call__(self, name: str, value: Any) -> Any:
        if isinstance(self.low, int) and isinstance(self.high, int):
            return check_whole(name, value, self.low, self.high)
        return check_number(name, value, self.low, self.high)


class OneOf(NamedTuple):
    """One of a few words."""

    choices: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> Any:
        check_choice(name, value, self.choices)
        return value


class Flag(NamedTuple):
    """True or False."""

    def __call__(self, name: str, value: Any) -> Any:
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} is {value!r}; it must be true or false")
        return value


class Named(NamedTuple):
    """The name of a namespace, a queue or a group."""

    what: str

    def __call__(self, name: str, value: Any) -> Any:
        return check_name(self.what, value)


class Moment(NamedTuple):
    """A time: Unix seconds or an aware datetime, kept as Unix seconds."""

    def __call__(self, name: str, value: Any) -> Any:
        return check_time(f"{name} (Unix seconds)", value, 0, MAX_TIME_S)


class Words(NamedTuple):
    """Text that can be encoded as UTF-8."""

    def __call__(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise InvalidInput(f"{name} is text, not {type(value).__name__}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{name} is not valid text: {error.reason}") from None
        return value


class Ids(NamedTuple):
    """Message ids: one or several, kept as a tuple."""

    def __call__(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, Iterable):
            raise InvalidInput(f"{name} is a message id, or several, not {type(value).__name__}")
        return tuple(value)


GroupName = Annotated[str, Named("group")]


class FieldNote(NamedTuple):
    """A field of an operation, as HTTP routes and clients need to know it."""

    name: str
    hint: Any  # its type, without the checks
    checks: tuple[Any, ...]


@cache
def field_notes(operation: Any) -> tuple[FieldNote, ...]:
    """Return the fields of a class of operations in their order."""
    hints = get_type_hints(operation, include_extras=True)
    return tuple(
        FieldNote(field.name, *_split(hints[field.name]))
        for field in fields(operation)
        if field.init  # the broker sets the others
    )


def _split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type and the checks that annotate it, or that annotate a member of the union."""
    if hasattr(hint, "__metadata__"):
        return hint.__origin__, hint.__metadata__
    for part in get_args(hint):
        if hasattr(part, "__metadata__"):
            return hint, part.__metadata__
    return hint, ()


@cache
def _checks(operation: Any) -> tuple[tuple[str, Any, Any], ...]:
    """Return the name, the default (which is right) and the check of each field that has one."""
    return tuple(
        (
            note.name,
            operation.__dataclass_fields__[note.name].default,
            _or_none(check) if type(None) in get_args(note.hint) else check,
        )
        for note in field_notes(operation)
        for check in note.checks
    )


def _or_none(check: Any) -> Any:
    return lambda name, value: None if value is None else check(name, value)
