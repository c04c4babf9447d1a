"""Every error has its status and code."""

import inspect
from http import HTTPStatus

import pytest

from penstock import errors
from penstock.errors import PenstockError, RateLimited
from penstock.server import problems
from penstock.server.problems import CODES, KINDS, Problem, kind_of, problem_of

ERRORS = [
    kind
    for module in (errors, problems)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, PenstockError)
]
# What only a base says, as no call of the server raises just that.
INHERITED = {
    errors.BrokerError,
    errors.Unreachable,
    errors.QueueError,
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_kind_of_its_own_or_of_its_base(error: type[PenstockError]) -> None:
    if error in INHERITED:
        return
    assert any(base in KINDS for base in error.__mro__ if base is not PenstockError) or (
        error is PenstockError
    )


def test_statuses_are_http_and_422_is_never_used() -> None:
    for kind in KINDS.values():
        assert 400 <= HTTPStatus(kind.status) < 600
        assert kind.status != 422


def test_what_may_succeed_later_says_when() -> None:
    for status in (429, 503, 507):
        assert all(kind.retry for kind in KINDS.values() if kind.status == status)
    problem = problem_of(RateLimited("slower", 0.2))
    assert problem.headers["retry-after"] == "1"
    assert problem.more["retry_after_s"] == 0.2


def test_an_unforeseen_error_keeps_its_words_to_itself() -> None:
    problem = problem_of(RuntimeError("the password is 1234"))
    assert (problem.status, problem.code) == (500, "internal")
    assert b"1234" not in problem.body("id-1")
    assert b"id-1" in problem.body("id-1")


def test_subclasses_are_answered_as_their_nearest_base() -> None:
    class Special(errors.NoSuchQueue):
        """Made here."""

    assert kind_of(Special()) == KINDS[errors.NoSuchQueue]


def test_codes_are_words() -> None:
    assert all(code.isidentifier() and code.islower() for code in CODES)
    assert isinstance(problem_of(errors.NoSuchQueue("x")), Problem)
