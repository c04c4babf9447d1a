"""Whatever a client sends: a frame that is understood, or an error that says why not."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import QueueName
from penstock.broker.consumers import Consumer
from penstock.errors import PenstockError
from penstock.server.ws.epochqueue import EpochQueueFrames
from penstock.server.ws.native import NativeFrames
from penstock.server.ws.stream import Frames

DIALECTS = [NativeFrames(b64=False), EpochQueueFrames(QueueName("default", "orders"))]
WORDS = ["type", "ack", "nack", "extend", "credit", "receipt", "receipt_handle", "delay_s"]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner),
    max_leaves=5,
)


class Anything:
    """Takes whatever it is asked for, within the bounds of a consumer."""

    def set_credit(self, credit: int) -> None:
        pass

    def settle(self, settlements: Any) -> Any:
        assert len(settlements) == 1


@pytest.mark.parametrize("frames", DIALECTS)
@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_any_text(frames: Frames, text: str) -> None:
    understood_or_refused(frames, text)


@pytest.mark.parametrize("frames", DIALECTS)
@given(values)
def test_any_json(frames: Frames, value: Any) -> None:
    understood_or_refused(frames, json.dumps(value))


def understood_or_refused(frames: Frames, text: str) -> None:
    try:
        frames.handle(cast(Consumer, Anything()), text)
    except PenstockError as error:
        said = json.loads(frames.error(error))
        assert said["type"] == "error"
