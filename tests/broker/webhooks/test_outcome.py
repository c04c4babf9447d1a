"""What an answer means: one table for each style."""

import pytest

from penstock.broker.webhooks.outcome import (
    EPOCHQUEUE_RETRY_S,
    FAILURES_TO_OPEN,
    FIRST_OPEN_S,
    MAX_OPEN_S,
    MAX_RETRY_AFTER_S,
    STANDARD_RETRY_S,
    Breaker,
    Circuit,
    judge,
)
from penstock.broker.webhooks.sending import Answer
from penstock.broker.webhooks.subscription import Style, Subscription
from penstock.names import QueueName

TIMEOUT = Answer(0, "no answer within 10 s")


def subscription(style: Style) -> Subscription:
    return Subscription(
        id="wh-1",
        queue=QueueName("default", "orders"),
        url="https://example.com/",
        style=style,
        group="main",
        owns_group=False,
        secrets=(),
        retry_s=STANDARD_RETRY_S if style is Style.STANDARD else EPOCHQUEUE_RETRY_S,
        created_at_ns=0,
    )


STANDARD, EPOCHQUEUE = subscription(Style.STANDARD), subscription(Style.EPOCHQUEUE)


@pytest.mark.parametrize("kind", [STANDARD, EPOCHQUEUE])
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_success_also_a_202(kind: Subscription, status: int) -> None:
    assert judge(kind, Answer(status), 1).outcome == "delivered"


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 429, 500, 503])
def test_anything_else_is_retried_in_the_standard_style(status: int) -> None:
    assert judge(STANDARD, Answer(status), 1) == (
        "retry",
        f"the endpoint answered {status}",
        STANDARD_RETRY_S[0],
        0.0,
    )


def test_the_waits_of_the_standard_style_grow_and_the_last_one_repeats() -> None:
    waits = [judge(STANDARD, TIMEOUT, attempt).delay_s for attempt in range(1, 8)]
    assert waits == [*STANDARD_RETRY_S, STANDARD_RETRY_S[-1], STANDARD_RETRY_S[-1]]


def test_a_410_disables_the_endpoint() -> None:
    assert judge(STANDARD, Answer(410), 1).outcome == "disabled"


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(status: int) -> None:
    judged = judge(STANDARD, Answer(status, retry_after_s=90.0), 1)
    assert (judged.delay_s, judged.pause_s) == (90.0, 90.0)
    assert judge(STANDARD, Answer(status, retry_after_s=1.0), 1).delay_s == STANDARD_RETRY_S[0]
    assert judge(STANDARD, Answer(status, retry_after_s=1e9), 1).pause_s == MAX_RETRY_AFTER_S
    assert judge(STANDARD, Answer(500, retry_after_s=90.0), 1).pause_s == 0


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_epochqueue_a_4xx_is_dead_at_once(status: int) -> None:
    assert judge(EPOCHQUEUE, Answer(status), 1).outcome == "dead"


@pytest.mark.parametrize("answer", [Answer(500), Answer(503), Answer(429), Answer(302), TIMEOUT])
def test_epochqueue_retries_after_1_5_and_30_s_and_then_it_is_dead(answer: Answer) -> None:
    judged = [judge(EPOCHQUEUE, answer, attempt) for attempt in range(1, 5)]
    assert [(one.outcome, one.delay_s) for one in judged] == [
        ("retry", 1.0),
        ("retry", 5.0),
        ("retry", 30.0),
        ("dead", 0.0),
    ]


def test_an_answer_that_is_too_large_is_a_failure_whatever_its_status() -> None:
    assert judge(STANDARD, Answer(200, "the answer is over 65536 bytes"), 1).outcome == "retry"


# -- the circuit breaker ---------------------------------------------------------------------------


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
    assert breaker.state(FIRST_OPEN_S) is Circuit.HALF_OPEN
    breaker.succeeded()
    assert breaker.state(FIRST_OPEN_S) is Circuit.CLOSED


def test_one_failure_after_its_rest_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    breaker, now_s, rests = opened(), 0.0, []
    for _ in range(8):
        rests.append(breaker.open_until_s - now_s)
        now_s = breaker.open_until_s
        breaker.failed(now_s)
    assert rests[:3] == [FIRST_OPEN_S, 2 * FIRST_OPEN_S, 4 * FIRST_OPEN_S]
    assert rests[-1] == MAX_OPEN_S


def test_failures_of_what_was_under_way_are_counted_but_do_not_lengthen_the_rest() -> None:
    breaker = opened()
    breaker.failed(1.0)
    assert breaker.failures == FAILURES_TO_OPEN + 1
    assert breaker.open_until_s == FIRST_OPEN_S


def test_it_rests_as_long_as_the_endpoint_asks_for_and_is_then_as_before() -> None:
    breaker = Breaker()
    breaker.failed(0.0)
    breaker.pause(90.0)
    assert breaker.state(89.0) is Circuit.OPEN
    assert breaker.state(90.0) is Circuit.CLOSED
