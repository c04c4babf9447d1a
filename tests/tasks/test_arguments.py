"""Arguments travel as JSON by the annotations of the function, and come back as they were."""

import enum
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.tasks import Tasks, chain
from penstock.tasks.arguments import Arguments


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Address:
    street: str
    number: int | None = None


def everything(
    positional: int,
    /,
    address: Address,
    when: datetime,
    id: UUID,
    price: Decimal,
    colour: Colour,
    *rest: date,
    wait: timedelta = timedelta(0),
    names: set[str] | None = None,
    pair: tuple[int, str] = (0, ""),
    **more: float,
) -> tuple[Any, ...]:
    return (positional, address, when, id, price, colour, rest, wait, names, pair, more)


def test_every_kind_of_argument_comes_back_as_it_was(tasks: Tasks) -> None:
    seen: list[object] = []

    @tasks.task
    def keep(
        positional: int,
        /,
        address: Address,
        when: datetime,
        id: UUID,
        price: Decimal,
        colour: Colour,
        *rest: date,
        wait: timedelta = timedelta(0),
        names: set[str] | None = None,
        pair: tuple[int, str] = (0, ""),
        **more: float,
    ) -> None:
        seen.append((positional, address, when, id, price, colour, rest, wait, names, pair, more))

    args = (
        7,
        Address("High Street", 3),
        datetime(2026, 5, 1, 12, tzinfo=UTC),
        UUID(int=5),
        Decimal("1.10"),
        Colour.RED,
        date(2026, 1, 1),
        date(2026, 1, 2),
    )
    kwargs: dict[str, Any] = {"wait": timedelta(seconds=90), "names": {"a"}, "pair": (1, "b")}
    keep.enqueue(*args, **kwargs, extra=0.5)
    keep.enqueue(*args[:6])
    assert tasks.run_pending() == 2
    assert seen == [
        (*args[:6], args[6:], *kwargs.values(), {"extra": 0.5}),
        (*args[:6], (), timedelta(0), None, (0, ""), {}),
    ]


def test_a_message_has_the_version_the_name_and_the_arguments_that_were_given(tasks: Tasks) -> None:
    @tasks.task
    def welcome(user_id: int, *, locale: str = "en", copies: int = 1) -> None: ...

    job = welcome.enqueue(7, locale="de")
    payload = tasks.queue().get(job.id).payload
    expected = {"v": 1, "task": "welcome", "args": {"user_id": 7, "locale": "de"}}
    assert json.loads(payload) == expected


def add(a: int, b: int = 1) -> int:
    return a + b


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda task: task.enqueue("7"), InvalidInput, "Expected `int`, got `str`"),
        (lambda task: task.enqueue(1.5), InvalidInput, "Expected `int`, got `float`"),
        (lambda task: task.enqueue(object()), InvalidInput, "unsupported"),
        (lambda task: task.enqueue(), TypeError, "'a'"),
        (lambda task: task.enqueue(1, 2, 3), TypeError, "cannot be called like this"),
        (lambda task: task.enqueue(1, c=3), TypeError, "'c'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_published(
    tasks: Tasks, call: Callable[[Any], object], error: type[Exception], says: str
) -> None:
    task = tasks.task(add)
    with pytest.raises(error, match=says):
        call(task)
    assert tasks.queue().stats().published == 0


def test_an_argument_without_a_type_is_refused_if_it_would_come_back_changed(tasks: Tasks) -> None:
    @tasks.task
    def note(what, *, when=None):  # type: ignore[no-untyped-def]
        return what

    note.enqueue({"a": [1, None, "x", 0.5]})
    with pytest.raises(InvalidInput, match="annotate the parameter"):
        note.enqueue("x", when=datetime(2026, 1, 1))
    with pytest.raises(InvalidInput, match="annotate the parameter"):
        note.enqueue((1, 2))
    assert tasks.queue().stats().published == 1


def test_annotations_are_resolved_when_they_are_needed(tasks: Tasks) -> None:
    @tasks.task
    def later(item: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidInput, match="cannot be resolved"):
        later.enqueue(1)


def test_a_large_number_of_arguments_that_nest_too_deep_is_refused(tasks: Tasks) -> None:
    task = tasks.task(add)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInput):
        task.enqueue(deep)  # type: ignore[arg-type]


@dataclass(eq=False)
class Reading:
    """Without `__eq__`, and with a field that takes any sequence."""

    value: float | None
    tags: Sequence[str] = ()


CHANGED: list[tuple[Any, Any]] = [
    (float | None, math.nan),
    (float | None, -math.inf),
    (list[float | None], [1.0, math.nan]),
    (str, b"secret"),
    (bytes, "c2VjcmV0"),
    (dict[str, object], {"x": math.nan}),
    (dict[str, object], {"x": b"1"}),
    (dict[str, object], {"x": (1, 2)}),
    (dict[str, int], {1: 2}),
    (list, [(1,)]),
    (list[object], [date(2026, 1, 1)]),
    (Reading, Reading(math.nan)),
    (list[Reading], [Reading(1.0), Reading(math.inf)]),
]


def task_with(kind: Any) -> Callable[..., None]:
    def take(first: Any = None, *, value: Any) -> None: ...

    take.__annotations__["value"] = kind
    return take


@pytest.mark.parametrize(("kind", "value"), CHANGED)
def test_an_argument_that_would_arrive_changed_is_refused(
    tasks: Tasks, kind: Any, value: Any
) -> None:
    task = tasks.task(task_with(kind))
    with pytest.raises(InvalidInput, match="would not come back"):
        task.enqueue(value=value)
    assert tasks.queue().stats().published == 0


@pytest.mark.parametrize(("kind", "value"), CHANGED)
def test_an_argument_of_a_step_that_would_arrive_changed_is_refused(
    tasks: Tasks, kind: Any, value: Any
) -> None:
    first, second = tasks.task(add), tasks.task(task_with(kind))
    with pytest.raises(InvalidInput, match="would not come back"):
        chain(first.s(1), second.s(value=value)).enqueue()
    assert tasks.queue().stats().published == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Sequence[int], (1, 2)),
        (tuple[int, str], [1, "a"]),
        (float, 1),
        (date, "2026-05-01"),
        (Colour, "red"),
        (bytes, b"x"),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("sNaN")),
        (Address, {"street": "High Street"}),
        (Reading, Reading(1.5, ("a", "b"))),
        (dict[str, Reading], {"a": Reading(None)}),
        # In the hour that the clock repeats, `==` between two time zones is never true.
        (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))),
    ],
)
def test_an_argument_that_its_annotation_takes_is_accepted(kind: Any, value: Any) -> None:
    arguments = Arguments("take", task_with(kind))
    for data in (
        arguments.encode((), {"value": value}),
        arguments.encode_partly((1.5,), {"value": value}, float)[0],
    ):
        (_, read) = arguments.decode(data)
        assert isinstance(read["value"], getattr(kind, "__origin__", kind))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.sets(st.integers())
    ),
    max_leaves=8,
)


@given(plain)
def test_an_untyped_value_is_refused_or_arrives_equal(value: Any) -> None:
    arguments = Arguments("take", task_with(Any))
    try:
        data = arguments.encode((), {"value": value})
    except InvalidInput:
        return
    assert arguments.decode(data)[1]["value"] == value
