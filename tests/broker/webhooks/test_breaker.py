"""The circuit breaker, by itself."""

from penstock.broker.webhooks.breaker import (
    FAILURES_TO_OPEN,
    FIRST_REST_S,
    LONGEST_REST_S,
    Breaker,
    Circuit,
)


def opened(now_s: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker.failed(now_s)
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN - 1):
        breaker.failed(0.0)
    breaker.succeeded()
    for _ in range(FAILURES_TO_OPEN - 1):
        breaker.failed(0.0)
    assert breaker.state(0.0) is Circuit.CLOSED
    breaker.failed(0.0)
    assert breaker.state(0.0) is Circuit.OPEN


def test_after_its_rest_one_success_closes_it() -> None:
    breaker = opened()
    assert breaker.state(FIRST_REST_S) is Circuit.HALF_OPEN
    breaker.succeeded()
    assert breaker.state(FIRST_REST_S) is Circuit.CLOSED


def test_one_failure_after_its_rest_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    breaker, now_s, rests = opened(), 0.0, []
    for _ in range(8):
        rests.append(breaker.rests_until_s - now_s)
        now_s = breaker.rests_until_s
        breaker.failed(now_s)
    assert rests[:3] == [FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S]
    assert rests[-1] == LONGEST_REST_S


def test_failures_of_what_was_under_way_do_not_lengthen_the_rest() -> None:
    breaker = opened()
    breaker.failed(1.0)
    assert breaker.rests_until_s == FIRST_REST_S


def test_it_rests_as_long_as_the_endpoint_asks_for_and_is_then_as_before() -> None:
    breaker = Breaker()
    breaker.failed(0.0)
    breaker.pause(90.0)
    assert breaker.state(89.0) is Circuit.OPEN
    assert breaker.state(90.0) is Circuit.CLOSED
