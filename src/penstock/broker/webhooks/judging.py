"""What an answer means for the message and for the endpoint. Pure: one table for each style."""

from typing import Literal, NamedTuple

from penstock.broker.webhooks.sending import Answer
from penstock.broker.webhooks.subscription import Style, Subscription

STANDARD_RETRY_S = (5.0, 60.0, 300.0, 1800.0, 7200.0)
EPOCHQUEUE_RETRY_S = (1.0, 5.0, 30.0)
LONGEST_RETRY_AFTER_S = 86400.0

_GONE = 410
_TOO_MANY = 429
_BUSY = 503

Fate = Literal["delivered", "retry", "dead", "disabled"]


class Judgement(NamedTuple):
    """What becomes of a message after one delivery."""

    fate: Fate
    reason: str = ""
    delay_s: float = 0.0  # of a retry
    pause_s: float = 0.0  # the endpoint asked to be left alone for so long


def judge(subscription: Subscription, answer: Answer, attempt: int) -> Judgement:
    """What an answer to the `attempt`-th delivery of a message means."""
    if answer.ok:
        return Judgement("delivered")
    reason = answer.error or f"the endpoint answered {answer.status}"
    pause_s = 0.0
    if answer.status in (_TOO_MANY, _BUSY) and answer.retry_after_s is not None:
        pause_s = min(answer.retry_after_s, LONGEST_RETRY_AFTER_S)
    if subscription.style is Style.EPOCHQUEUE:
        return _judge_epochqueue(subscription, answer, attempt, reason, pause_s)
    if answer.status == _GONE:
        return Judgement("disabled", "the endpoint answered 410: it wants no more deliveries")
    return Judgement("retry", reason, max(_wait_s(subscription, attempt), pause_s), pause_s)


def _judge_epochqueue(
    subscription: Subscription, answer: Answer, attempt: int, reason: str, pause_s: float
) -> Judgement:
    refused_for_good = 400 <= answer.status < 500 and answer.status != _TOO_MANY
    if refused_for_good or attempt > len(subscription.retry_s):
        return Judgement("dead", reason, pause_s=pause_s)
    return Judgement("retry", reason, max(_wait_s(subscription, attempt), pause_s), pause_s)


def _wait_s(subscription: Subscription, attempt: int) -> float:
    waits = subscription.retry_s
    return waits[min(attempt, len(waits)) - 1]
