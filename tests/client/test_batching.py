"""Single publishes of many callers go as one batch, and suffer only for themselves."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from penstock.client.batching import AsyncBatcher, Batcher, Batching
from penstock.errors import InvalidInput, Unreachable
from penstock.model import NewMessage, Published
from penstock.queue.binding import finish
from tests.harness.virtual_loop import LoopClock, run_virtually


def message(payload: bytes) -> NewMessage:
    return NewMessage(payload=payload)


class Recorder:
    """Publishes nowhere, and remembers what went together."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []

    def publish(self, messages: Sequence[NewMessage]) -> list[Published]:
        payloads = [bytes(m.payload) for m in messages]  # type: ignore[arg-type]
        self.batches.append(payloads)
        if b"bad" in payloads:
            raise InvalidInput("bad")
        if b"far" in payloads:
            raise Unreachable("far")
        return [Published(payload.decode()) for payload in payloads]

    async def publish_async(self, messages: Sequence[NewMessage]) -> list[Published]:
        return self.publish(messages)


def gather(batching: Batching, payloads: list[bytes]) -> tuple[list[object], Recorder]:
    """What each of many tasks that publish at once is answered."""
    recorder = Recorder()

    async def story() -> list[object]:
        batcher = AsyncBatcher(batching, recorder.publish_async)
        calls = (batcher.publish(message(payload)) for payload in payloads)
        return list(await asyncio.gather(*calls, return_exceptions=True))

    return run_virtually(lambda _: story()), recorder


def test_tasks_that_publish_at_once_share_a_batch() -> None:
    answers, recorder = gather(Batching(linger_s=1), [b"1", b"2", b"3"])
    assert answers == [Published("1"), Published("2"), Published("3")]
    assert recorder.batches == [[b"1", b"2", b"3"]]


def test_a_full_batch_goes_without_waiting() -> None:
    clock = LoopClock()
    recorder = Recorder()

    async def story() -> None:
        batcher = AsyncBatcher(Batching(linger_s=60, max_messages=2), recorder.publish_async)
        await asyncio.gather(*(batcher.publish(message(b"%d" % n)) for n in range(4)))

    run_virtually(lambda _: story(), clock=clock)
    assert recorder.batches == [[b"0", b"1"], [b"2", b"3"]]
    assert clock.passed_ns == 0


def test_a_batch_stays_below_its_bytes() -> None:
    _, recorder = gather(Batching(linger_s=1, max_bytes=10), [b"a" * 6, b"b" * 6, b"c" * 3])
    assert sorted(map(len, recorder.batches)) == [1, 2]


def test_one_bad_message_fails_alone() -> None:
    answers, recorder = gather(Batching(linger_s=1), [b"1", b"bad", b"3"])
    assert (answers[0], answers[2]) == (Published("1"), Published("3"))
    assert isinstance(answers[1], InvalidInput)
    assert recorder.batches == [[b"1", b"bad", b"3"], [b"1"], [b"bad"], [b"3"]]


def test_a_broker_out_of_reach_is_asked_once_for_all() -> None:
    answers, recorder = gather(Batching(linger_s=1), [b"1", b"far"])
    assert all(isinstance(answer, Unreachable) for answer in answers)
    assert len(recorder.batches) == 1


def test_a_cancelled_caller_does_not_stop_the_others() -> None:
    recorder = Recorder()

    async def story() -> Published:
        batcher = AsyncBatcher(Batching(linger_s=1), recorder.publish_async)
        first = asyncio.create_task(batcher.publish(message(b"1")))
        second = asyncio.create_task(batcher.publish(message(b"2")))
        await asyncio.sleep(0)
        first.cancel()
        answer = await second
        await batcher.finish()
        return answer

    assert run_virtually(lambda _: story()) == Published("2")


def test_threads_share_a_batch_that_the_first_of_them_sends() -> None:
    recorder = Recorder()
    batcher = Batcher(Batching(linger_s=60, max_messages=3), recorder.publish_async)
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda n: finish(batcher.publish, message(b"%d" % n)), range(3)))
    assert answers == [Published("0"), Published("1"), Published("2")]
    assert sorted(recorder.batches[0]) == [b"0", b"1", b"2"]


def test_a_bad_message_of_a_thread_fails_alone() -> None:
    recorder = Recorder()
    batcher = Batcher(Batching(linger_s=60, max_messages=2), recorder.publish_async)
    with ThreadPoolExecutor(2) as threads:
        bad = threads.submit(lambda: finish(batcher.publish, message(b"bad")))
        good = threads.submit(lambda: finish(batcher.publish, message(b"good")))
        assert good.result(timeout=30) == Published("good")
        assert isinstance(bad.exception(timeout=30), InvalidInput)


def test_an_interrupted_sender_leaves_nobody_waiting() -> None:
    waits = Event()

    async def publish(messages: Sequence[NewMessage]) -> list[Published]:
        waits.wait(30)
        raise KeyboardInterrupt

    batcher = Batcher(Batching(linger_s=60, max_messages=2), publish)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(lambda: finish(batcher.publish, message(b"x"))) for _ in range(2)]
        waits.set()
        assert all(isinstance(call.exception(timeout=30), KeyboardInterrupt) for call in calls)


@pytest.mark.parametrize("wrong", [{"linger_s": -1}, {"max_messages": 0}, {"max_bytes": 0}])
def test_options_outside_their_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Batching(**wrong)
