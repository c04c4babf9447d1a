"""One POST, over real sockets."""

import asyncio
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest
from httpcore2 import AnyIOBackend, ConnectError

from penstock.broker.webhooks.sending import MAX_ANSWER_BYTES, Answer, HttpSender
from penstock.clock import ManualClock
from tests.broker.webhooks.endpoint import Receiver, answer, receiver

NOW_S = 1_700_000_000


def play(
    story: Callable[[HttpSender, Receiver], Awaitable[None]],
    *,
    allow_private: bool = True,
    names: dict[str, list[str]] | None = None,
) -> list[str]:
    """Runs a story; what was looked up, in order."""
    looked_up: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return (names or {}).get(host, [host])

    async def main() -> None:
        sender = HttpSender(
            ManualClock(now_s=NOW_S), allow_private=lambda: allow_private, resolve=resolve
        )
        async with receiver() as end, asyncio.timeout(60):
            await story(sender, end)
            await sender.close()

    asyncio.run(main())
    return looked_up


async def post(sender: HttpSender, url: str, *, timeout_s: float = 10.0) -> Answer:
    return await sender.post(url, {"X-Test": "1"}, b"body", timeout_s=timeout_s)


def test_it_posts_and_says_what_was_answered() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        end.answers = [answer(202)]
        assert await post(sender, end.url("/a?b=c")) == Answer(202)
        (request,) = end.received
        assert (request.method, request.target, request.body) == ("POST", "/a?b=c", b"body")
        assert request.headers["host"] == f"127.0.0.1:{end.port}"
        assert request.headers["x-test"] == "1"

    play(story)


def test_connections_are_kept() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        for _ in range(3):
            assert (await post(sender, end.url())).ok
        assert end.connections == 1

    play(story)


def test_a_redirect_is_not_followed() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        end.answers = [answer(302, f"Location: {end.url('/elsewhere')}")]
        assert not (await post(sender, end.url())).ok
        assert len(end.received) == 1

    play(story)


def test_an_answer_over_64_kb_is_a_failure_and_is_not_read_on() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        end.answers = [answer(200, body=b"x" * MAX_ANSWER_BYTES)]
        assert (await post(sender, end.url())).ok
        end.answers = [answer(200, body=b"x" * (MAX_ANSWER_BYTES + 1))]
        refused = await post(sender, end.url())
        assert (refused.ok, refused.status) == (False, 200)
        assert "65536 bytes" in refused.error

    play(story)


def test_the_time_limit_is_for_all_of_it() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        end.silent = True
        late = await post(sender, end.url(), timeout_s=0.1)
        assert late == Answer(0, "no answer within 0.1 s")

    play(story)


def test_nobody_listening_is_an_error_not_an_exception() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        refused = await post(sender, "http://127.0.0.1:1/")
        assert refused.status == 0
        assert refused.error

    play(story)


def test_an_answer_that_is_not_http_is_an_error_not_an_exception() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        end.answers = [b"SSH-2.0-OpenSSH\r\n\r\n"]
        assert (await post(sender, end.url())).error

    play(story)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (format_datetime(datetime.fromtimestamp(NOW_S + 60, UTC), usegmt=True), 60.0),
        (format_datetime(datetime.fromtimestamp(NOW_S - 60, UTC), usegmt=True), 0.0),
        ("soon", None),
        ("-1", None),
        ("9" * 50, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, seconds: float | None) -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        end.answers = [answer(503, f"Retry-After: {value}")]
        assert await post(sender, end.url()) == Answer(503, retry_after_s=seconds)

    play(story)


def test_a_name_that_leads_to_a_private_address_is_not_called() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        refused = await post(sender, end.url(host="hooks.example.com"))
        assert refused.status == 0
        assert "127.0.0.1 is not a public address" in refused.error
        assert end.connections == 0

    play(story, allow_private=False, names={"hooks.example.com": ["127.0.0.1", "::1"]})


def test_the_name_is_looked_up_once_and_goes_on_in_host_only() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        assert (await post(sender, end.url(host="hooks.example.com"))).ok
        assert end.received[0].headers["host"] == f"hooks.example.com:{end.port}"

    names = {"hooks.example.com": ["127.0.0.1"]}
    assert play(story, names=names) == ["hooks.example.com"]


def test_another_address_of_the_name_is_tried_if_one_does_not_answer() -> None:
    async def story(sender: HttpSender, end: Receiver) -> None:
        assert (await post(sender, end.url(host="hooks.example.com"))).ok

    play(story, names={"hooks.example.com": ["::1", "127.0.0.1"]})


def test_of_several_addresses_only_the_public_ones_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    async def refuse(_: AnyIOBackend, host: str, port: int, **options: object) -> None:
        called.append(host)
        raise ConnectError("nobody is there")

    async def story(sender: HttpSender, end: Receiver) -> None:
        assert (await post(sender, end.url(host="hooks.example.com"))).error == "nobody is there"

    monkeypatch.setattr(AnyIOBackend, "connect_tcp", refuse)
    names = ["127.0.0.1", "93.184.216.34", "::1", "2606:2800:220:1::1"]
    play(story, allow_private=False, names={"hooks.example.com": names})
    assert called == ["93.184.216.34", "2606:2800:220:1::1"]


def test_tls_is_checked_against_the_name_though_the_address_is_called(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=hooks.example.com", "-addext", "subjectAltName=DNS:hooks.example.com"]
    subprocess.run(
        [*make.split(), *names, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    asked_for: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: asked_for.append(name)

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def main() -> None:
        sender = HttpSender(
            ManualClock(), allow_private=lambda: True, resolve=resolve, tls=trusting
        )
        async with receiver(serving) as end, asyncio.timeout(60):
            assert (await post(sender, end.url(host="hooks.example.com", scheme="https"))).ok
            wrong = await post(sender, end.url(host="other.example.com", scheme="https"))
            assert "mismatch" in wrong.error.lower()
            await sender.close()

    asyncio.run(main())
    assert asked_for == ["hooks.example.com", "other.example.com"]
