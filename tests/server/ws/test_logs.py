"""What is not logged of WebSockets, whatever the level and whoever's logger it is."""

import logging
from collections.abc import Iterator

import httpx2
import pytest

from tests.server.running import RunningServer, queue_path
from tests.server.ws.client import opened, stream_path
from tests.server.ws.test_limits import HANDSHAKE

SECRET, PAYLOAD = "pk-very-secret", "a-payload-of-mine"


class Everything(logging.Handler):
    """Whatever is logged, by any logger, at any level."""

    def __init__(self) -> None:
        super().__init__(0)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def everything() -> Iterator[Everything]:
    handler = Everything()
    names = ["websockets", "websockets.server", "penstock", "penstock.server"]
    loggers = [logging.getLogger(), *map(logging.getLogger, names)]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
    yield handler
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.removeHandler(handler)


def test_a_stream_logs_neither_its_path_nor_its_key_nor_payloads(
    server: RunningServer, http: httpx2.Client, queue: str, everything: Everything
) -> None:
    token = server.new_key("consume", "publish")
    headers = {"x-api-key": token}
    http.post(queue_path(queue, "messages"), json={"payload": PAYLOAD}, headers=headers)
    with opened(server, stream_path(queue), additional_headers=headers) as stream:
        (message,) = stream.messages(1)
        assert message["payload"] == PAYLOAD
        stream.settle(type="ack", receipt=message["receipt"])
    for query, status in ((f"?api_key={SECRET}", 400), (f"?credit={SECRET}", 400)):
        with server.wire() as wire:
            key = f"X-Api-Key: {token}"
            path = stream_path(queue, query)
            wire.request("GET", path, b"", *HANDSHAKE, key, length=False)
            assert wire.answer().status == status
            assert wire.is_closed_by_server()
    with server.wire() as wire:  # no such route
        wire.request("GET", f"/nowhere/{SECRET}", b"", *HANDSHAKE, length=False)
        assert wire.answer().status in (403, 404)
    with server.wire() as wire:  # not a handshake after all
        wire.request("GET", f"/nowhere/{SECRET}", b"", *HANDSHAKE[:2], length=False)
        assert wire.answer().status in (400, 426)
    everything.lines[:] = [
        line for line in everything.lines if not line.startswith(("websockets.client", "http"))
    ]
    logged = "\n".join(everything.lines)
    for never in (SECRET, PAYLOAD, token, queue):
        assert never not in logged, logged
