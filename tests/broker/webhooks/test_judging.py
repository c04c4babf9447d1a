"""What an answer means: one table for each style."""

import pytest

from penstock.broker.webhooks.judging import (
    EPOCHQUEUE_RETRY_S,
    LONGEST_RETRY_AFTER_S,
    STANDARD_RETRY_S,
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
    assert judge(kind, Answer(status), 1).fate == "delivered"


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
    assert judge(STANDARD, Answer(410), 1).fate == "disabled"


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(status: int) -> None:
    judged = judge(STANDARD, Answer(status, retry_after_s=90.0), 1)
    assert (judged.delay_s, judged.pause_s) == (90.0, 90.0)
    assert judge(STANDARD, Answer(status, retry_after_s=1.0), 1).delay_s == STANDARD_RETRY_S[0]
    assert judge(STANDARD, Answer(status, retry_after_s=1e9), 1).pause_s == LONGEST_RETRY_AFTER_S
    assert judge(STANDARD, Answer(500, retry_after_s=90.0), 1).pause_s == 0


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_epochqueue_a_4xx_is_dead_at_once(status: int) -> None:
    assert judge(EPOCHQUEUE, Answer(status), 1).fate == "dead"


@pytest.mark.parametrize("answer", [Answer(500), Answer(503), Answer(429), Answer(302), TIMEOUT])
def test_epochqueue_retries_after_1_5_and_30_s_and_then_it_is_dead(answer: Answer) -> None:
    judged = [judge(EPOCHQUEUE, answer, attempt) for attempt in range(1, 5)]
    assert [(one.fate, one.delay_s) for one in judged] == [
        ("retry", 1.0),
        ("retry", 5.0),
        ("retry", 30.0),
        ("dead", 0.0),
    ]


def test_an_answer_that_is_too_large_is_a_failure_whatever_its_status() -> None:
    assert judge(STANDARD, Answer(200, "the answer is over 65536 bytes"), 1).fate == "retry"
