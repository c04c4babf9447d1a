"""The errors of a broker come back as the same classes."""

import json

import pytest

from penstock import errors
from penstock.client.faults import ERRORS, error_of
from penstock.server.problems import CODES, KINDS, problem_of


def test_every_code_of_the_server_is_known_and_no_other() -> None:
    assert set(ERRORS) == set(CODES)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind.__module__ == "penstock.errors"],
    ids=lambda kind: kind.__name__,
)
def test_an_error_comes_back_as_its_class_or_the_nearest(kind: type[errors.PenstockError]) -> None:
    if issubclass(kind, errors.RateLimited | errors.TooManyRequests):
        error: errors.PenstockError = kind("why", 2.0)
    elif issubclass(kind, errors.BadEntry):
        error = kind(0, "why")
    else:
        error = kind("why")
    problem = problem_of(error)
    back = error_of(problem.status, problem.body(), 2.0)
    expected = {
        errors.EntryGone: errors.NoSuchMessage,
        errors.BadEntry: errors.CorruptLedger,
        errors.PenstockError: errors.BrokerError,
    }.get(kind, kind)
    assert type(back) is expected
    assert str(back) == str(error)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, errors.KeyRefused),
        (403, errors.NotAllowed),
        (413, errors.TooLarge),
        (429, errors.TooManyRequests),
        (502, errors.Unavailable),
        (418, errors.BrokerError),
        (500, errors.BrokerError),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"code": "unheard-of"}', b"\xff"])
def test_the_answer_of_something_else_is_judged_by_its_status(
    status: int, error: type[errors.PenstockError], body: bytes
) -> None:
    back = error_of(status, body, None)
    assert type(back) is error
    assert str(status) in str(back)


def test_a_detail_that_is_no_text_is_left_out() -> None:
    body = json.dumps({"code": "invalid_input", "detail": 7}).encode()
    assert str(error_of(400, body, None)) == "the broker answered 400"
