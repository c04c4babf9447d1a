"""What follows a try: the answer, another try, or the error. No socket, no sleep."""

import json

import pytest

from penstock.client.call import Call, Reply
from penstock.client.tries import Done, Pause, Retrying, Tries
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

NO_CHANCE = 1.0  # the longest of the possible pauses


def call(*, repeatable: bool) -> Call[Reply]:
    return Call(method="POST", path="/x", read=lambda reply: reply, repeatable=repeatable)


def tries(clock: ManualClock, *, repeatable: bool = True, retry_s: float = 30.0) -> Tries[Reply]:
    return Tries(
        call(repeatable=repeatable), Retrying(retry_s=retry_s), clock, chance=lambda: NO_CHANCE
    )


def problem(code: str, **more: object) -> bytes:
    return json.dumps({"code": code, "detail": "why", **more}).encode()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_good_answer_is_read(clock: ManualClock) -> None:
    assert tries(clock).answered(200, {}, b'{"a": 1}') == Done(Reply({"a": 1}))
    assert tries(clock).answered(204, {}, b"") == Done(Reply(None))


def test_an_answer_that_is_not_json_says_so(clock: ManualClock) -> None:
    with pytest.raises(BrokerError, match="not JSON"):
        tries(clock).answered(200, {}, b"<html>")


def test_an_answer_without_what_is_needed_says_so(clock: ManualClock) -> None:
    wants = Call(method="GET", path="/x", read=lambda reply: reply.data["id"], repeatable=True)
    with pytest.raises(BrokerError, match="same version"):
        Tries(wants, Retrying(), clock).answered(200, {}, b"{}")


def test_pauses_grow_up_to_the_longest(clock: ManualClock) -> None:
    trying = tries(clock)
    pauses = []
    for _ in range(9):
        pause = trying.failed("no", sent=False)
        pauses.append(pause.seconds)
        clock.advance(pause.seconds)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_chance_spreads_pauses_over_their_upper_half(clock: ManualClock) -> None:
    trying = Tries(call(repeatable=True), Retrying(), clock, chance=lambda: 0.0)
    assert trying.failed("no", sent=False) == Pause(0.025)


def test_it_gives_up_when_the_time_is_over(clock: ManualClock) -> None:
    trying = tries(clock, retry_s=1)
    trying.failed("no", sent=False)
    clock.advance(1)
    with pytest.raises(Unreachable, match="nothing was changed"):
        trying.failed("no", sent=False)


def test_it_tells_once_that_it_tries_again_if_that_takes_long_enough_to_notice(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.client")
    trying = tries(clock)
    told = []
    for _ in range(8):
        trying.failed("nobody is there", sent=False)
        told.append(len(caplog.records))
    assert told == [0, 0, 0, 1, 1, 1, 1, 1]
    assert "nobody is there" in caplog.text
    assert "tried again for up to 30 s" in caplog.text


def test_without_time_for_retries_the_first_failure_is_final(clock: ManualClock) -> None:
    with pytest.raises(Unreachable):
        tries(clock, retry_s=0).failed("no", sent=False)


def test_what_was_not_sent_is_always_tried_again(clock: ManualClock) -> None:
    assert isinstance(tries(clock, repeatable=False).failed("no", sent=False), Pause)


def test_what_may_have_arrived_is_tried_again_only_if_that_makes_no_difference(
    clock: ManualClock,
) -> None:
    assert isinstance(tries(clock).failed("cut", sent=True), Pause)
    with pytest.raises(Unreachable, match="not known"):
        tries(clock, repeatable=False).failed("cut", sent=True)


def test_what_may_have_arrived_once_stays_so(clock: ManualClock) -> None:
    trying = tries(clock)
    trying.failed("cut", sent=True)
    trying.failed("no connection", sent=False)
    assert trying.answered(200, {}, b"{}") == Done(Reply({}, resent=True))


def test_a_gateways_timeout_may_have_been_carried_out(clock: ManualClock) -> None:
    assert isinstance(tries(clock).answered(504, {}, b""), Pause)
    with pytest.raises(Unavailable):
        tries(clock, repeatable=False).answered(504, {}, b"")


def test_what_cannot_be_sent_at_all_is_not_tried_again(clock: ManualClock) -> None:
    with pytest.raises(Unreachable):
        tries(clock).failed("bad header", sent=False, hopeless=True)


def test_a_refusal_for_now_is_tried_again_when_the_broker_says(clock: ManualClock) -> None:
    trying = tries(clock, repeatable=False)
    assert trying.answered(503, {"retry-after": "7"}, problem("unavailable")) == Pause(7)
    assert trying.answered(429, {"retry-after": "3"}, problem("too_many_requests")) == Pause(3)


def test_a_wait_longer_than_the_retries_is_left_to_the_caller(clock: ManualClock) -> None:
    with pytest.raises(RateLimited) as refused:
        tries(clock).answered(429, {"retry-after": "60"}, problem("rate_limited"))
    assert refused.value.retry_after_s == 60


def test_the_precise_wait_is_preferred_to_the_header(clock: ManualClock) -> None:
    body = problem("rate_limited", retry_after_s=61.5)
    with pytest.raises(RateLimited) as refused:
        tries(clock).answered(429, {"retry-after": "62"}, body)
    assert refused.value.retry_after_s == 61.5


def test_a_full_queue_is_an_answer_of_its_own(clock: ManualClock) -> None:
    with pytest.raises(QueueFull, match="why"):
        tries(clock).answered(429, {"retry-after": "1"}, problem("queue_full"))


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(400, "invalid_input", InvalidInput), (507, "disk_full", DiskFull)],
)
def test_what_fails_again_is_not_tried_again(
    clock: ManualClock, status: int, code: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        tries(clock).answered(status, {}, problem(code))


@pytest.mark.parametrize("header", ["soon", "", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_retry_after_that_is_no_number_is_left_out(clock: ManualClock, header: str) -> None:
    assert tries(clock).answered(503, {"retry-after": header}, b"") == Pause(0.05)


def test_the_longest_pause_holds_after_any_number_of_tries(clock: ManualClock) -> None:
    trying = Tries(call(repeatable=True), Retrying(retry_s=86400), clock, chance=lambda: NO_CHANCE)
    for _ in range(2000):
        assert trying.failed("no", sent=False).seconds <= 2.0
