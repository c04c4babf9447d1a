"""What follows an attempt: the answer, a retry, or the error. No socket, no sleep."""

import json

import pytest

from penstock.client.request import Reply, Request
from penstock.client.request_retries import Attempts, Done, Retry, RetryLimits
from penstock.clock import ManualClock
from penstock.errors import (
    BrokerError,
    DiskFull,
    InvalidInput,
    QueueFull,
    RateLimited,
    Unavailable,
    Unreachable,
)

NO_CHANCE = 1.0  # the longest of the possible waits


def request(*, idempotent: bool) -> Request[Reply]:
    return Request(method="POST", path="/x", read=lambda reply: reply, idempotent=idempotent)


def attempts(
    clock: ManualClock, *, idempotent: bool = True, retry_s: float = 30.0
) -> Attempts[Reply]:
    return Attempts(
        request(idempotent=idempotent),
        RetryLimits(retry_s=retry_s),
        clock,
        chance=lambda: NO_CHANCE,
    )


def problem(code: str, **more: object) -> bytes:
    return json.dumps({"code": code, "detail": "why", **more}).encode()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_good_answer_is_read(clock: ManualClock) -> None:
    assert attempts(clock).answered(200, {}, b'{"a": 1}') == Done(Reply({"a": 1}))
    assert attempts(clock).answered(204, {}, b"") == Done(Reply(None, status=204))


def test_an_answer_that_is_not_json_says_so(clock: ManualClock) -> None:
    with pytest.raises(BrokerError, match="not JSON"):
        attempts(clock).answered(200, {}, b"<html>")


_DEEP = b"[" * 200_000


def test_an_answer_that_is_nested_too_deeply_is_not_json(clock: ManualClock) -> None:
    with pytest.raises(BrokerError, match="not JSON"):
        attempts(clock).answered(200, {}, _DEEP)
    with pytest.raises(BrokerError, match="answered 500"):
        attempts(clock).answered(500, {}, _DEEP)


def test_an_answer_without_what_is_needed_says_so(clock: ManualClock) -> None:
    wants = Request(method="GET", path="/x", read=lambda reply: reply.data["id"], idempotent=True)
    with pytest.raises(BrokerError, match="same version"):
        Attempts(wants, RetryLimits(), clock).answered(200, {}, b"{}")


def test_waits_grow_up_to_the_longest(clock: ManualClock) -> None:
    tried = attempts(clock)
    waits = []
    for _ in range(9):
        retry = tried.failed("no", sent=False)
        waits.append(retry.after_s)
        clock.advance(retry.after_s)
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_chance_spreads_waits_over_their_upper_half(clock: ManualClock) -> None:
    tried = Attempts(request(idempotent=True), RetryLimits(), clock, chance=lambda: 0.0)
    assert tried.failed("no", sent=False) == Retry(0.025)


def test_it_gives_up_when_the_time_is_over(clock: ManualClock) -> None:
    tried = attempts(clock, retry_s=1)
    tried.failed("no", sent=False)
    clock.advance(1)
    with pytest.raises(Unreachable, match="nothing was changed"):
        tried.failed("no", sent=False)


def test_retries_are_logged_once_if_they_take_long(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "penstock.client")  # shown by a program that sets up no logging
    tried = attempts(clock)
    told = []
    for _ in range(8):
        tried.failed("nobody is there", sent=False)
        told.append(len(caplog.records))
    assert told == [0, 0, 0, 1, 1, 1, 1, 1]
    assert "nobody is there" in caplog.text
    assert "retrying for up to 30 s" in caplog.text


def test_without_time_for_retries_the_first_failure_is_final(clock: ManualClock) -> None:
    with pytest.raises(Unreachable):
        attempts(clock, retry_s=0).failed("no", sent=False)


def test_what_was_not_sent_is_always_tried_again(clock: ManualClock) -> None:
    assert isinstance(attempts(clock, idempotent=False).failed("no", sent=False), Retry)


def test_what_may_have_arrived_is_tried_again_only_if_that_makes_no_difference(
    clock: ManualClock,
) -> None:
    assert isinstance(attempts(clock).failed("cut", sent=True), Retry)
    with pytest.raises(Unreachable, match="not known"):
        attempts(clock, idempotent=False).failed("cut", sent=True)


def test_what_may_have_arrived_once_stays_so(clock: ManualClock) -> None:
    tried = attempts(clock)
    tried.failed("cut", sent=True)
    tried.failed("no connection", sent=False)
    assert tried.answered(200, {}, b"{}") == Done(Reply({}, resent=True))


def test_a_gateways_timeout_may_have_been_carried_out(clock: ManualClock) -> None:
    assert isinstance(attempts(clock).answered(504, {}, b""), Retry)
    with pytest.raises(Unavailable):
        attempts(clock, idempotent=False).answered(504, {}, b"")


def test_what_cannot_be_sent_at_all_is_not_tried_again(clock: ManualClock) -> None:
    with pytest.raises(Unreachable):
        attempts(clock).failed("bad header", sent=False, hopeless=True)


def test_a_refusal_for_now_is_tried_again_when_the_broker_says(clock: ManualClock) -> None:
    tried = attempts(clock, idempotent=False)
    assert tried.answered(503, {"retry-after": "7"}, problem("unavailable")) == Retry(7)
    assert tried.answered(429, {"retry-after": "3"}, problem("too_many_requests")) == Retry(3)


def test_a_wait_longer_than_the_retries_is_left_to_the_caller(clock: ManualClock) -> None:
    with pytest.raises(RateLimited) as refused:
        attempts(clock).answered(429, {"retry-after": "60"}, problem("rate_limited"))
    assert refused.value.retry_after_s == 60


def test_the_precise_wait_is_preferred_to_the_header(clock: ManualClock) -> None:
    body = problem("rate_limited", retry_after_s=61.5)
    with pytest.raises(RateLimited) as refused:
        attempts(clock).answered(429, {"retry-after": "62"}, body)
    assert refused.value.retry_after_s == 61.5


def test_a_full_queue_is_an_answer_of_its_own(clock: ManualClock) -> None:
    with pytest.raises(QueueFull, match="why"):
        attempts(clock).answered(429, {"retry-after": "1"}, problem("queue_full"))


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(400, "invalid_input", InvalidInput), (507, "disk_full", DiskFull)],
)
def test_what_fails_again_is_not_tried_again(
    clock: ManualClock, status: int, code: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        attempts(clock).answered(status, {}, problem(code))


@pytest.mark.parametrize("header", ["soon", "", "1e999", "nan", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_retry_after_that_is_no_number_is_left_out(clock: ManualClock, header: str) -> None:
    assert attempts(clock).answered(503, {"retry-after": header}, b"") == Retry(0.05)


@pytest.mark.parametrize("seconds", ["1e999", "NaN", "1" + "0" * 400])
def test_a_wait_that_is_no_number_in_the_body_is_left_out(clock: ManualClock, seconds: str) -> None:
    body = problem("rate_limited").replace(b"}", f', "retry_after_s": {seconds}}}'.encode())
    with pytest.raises(RateLimited) as refused:
        attempts(clock, retry_s=0).answered(429, {"retry-after": "7"}, body)
    assert refused.value.retry_after_s == 7


def test_the_longest_wait_holds_after_any_number_of_tries(clock: ManualClock) -> None:
    tried = Attempts(
        request(idempotent=True), RetryLimits(retry_s=86400), clock, chance=lambda: NO_CHANCE
    )
    for _ in range(2000):
        assert tried.failed("no", sent=False).after_s <= 2.0
