"""URLs, and the names in them."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.client import connect, connect_async, connect_broker, connect_broker_async
from penstock.client.address import broker_address, queue_address
from penstock.client.options import ClientKeywords, ClientOptions, OpenOptions
from penstock.errors import InvalidInput
from penstock.queue.settings import QueueOptions


@pytest.mark.parametrize(
    ("url", "queue", "base", "named"),
    [
        ("http://h/shop/orders", None, "http://h", "shop/orders"),
        ("http://h/shop/orders/", None, "http://h", "shop/orders"),
        ("http://h:81/default/orders", None, "http://h:81", "default/orders"),
        ("https://h/under/a/path/shop/orders", None, "https://h/under/a/path", "shop/orders"),
        ("http://h/api/v1/namespaces/a/queues/b", None, "http://h", "a/b"),
        ("http://h/x/api/v1/namespaces/a/queues/b", None, "http://h/x", "a/b"),
        ("http://h", "orders", "http://h", "default/orders"),
        ("http://h/under/", "shop/orders", "http://h/under", "shop/orders"),
        ("http://[::1]:8080/default/q", None, "http://[::1]:8080", "default/q"),
    ],
)
def test_a_url_names_a_broker_and_a_queue(
    url: str, queue: str | None, base: str, named: str
) -> None:
    address = queue_address(url, queue)
    assert (address.base, str(address.queue)) == (base, named)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///shop/orders",
        "ftp://h/shop/orders",
        "http://h",
        "http://h/",
        "http://h/shop",
        "http://h/shop/",
        "http://user:secret@h/shop/orders",
        "http://h/shop/orders?key=psk",
        "http://h/shop/orders#x",
        "http://h/shop/Ord+rs",
        "http://h/shop/..",
        "http://h/shop/%2e%2e",
        "http://h/shop/a%2fb",
        "http://h:port/shop/orders",
        "http://[::1/q",
    ],
)
def test_what_names_no_queue_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        queue_address(url)


def test_a_url_without_a_queue_says_how_to_write_one() -> None:
    form = "write http://h:81/namespace/queue, such as http://h:81/default/shop$"
    with pytest.raises(InvalidInput, match=form):
        penstock.open("http://h:81/shop")


@pytest.mark.parametrize("url", [5, None, b"http://h/a/b", Path("http://h/a/b"), ["http://h"]])
def test_a_url_is_text(url: Any) -> None:
    for call in (penstock.connect, penstock.aio.connect, connect_broker, connect_broker_async):
        with pytest.raises(InvalidInput, match="url is .*; it must be text"):
            call(url)


@pytest.mark.parametrize("name", [5, None, b"orders", ["orders"]])
def test_the_name_of_a_queue_is_text(name: Any) -> None:
    with connect_broker("http://h") as broker:
        calls: list[Callable[[], object]] = [lambda: broker.queue(name), lambda: broker.stats(name)]
        if name is not None:
            calls.append(lambda: penstock.connect("http://h", queue=name))
        for call in calls:
            with pytest.raises(InvalidInput, match="is not a queue name"):
                call()


@pytest.mark.parametrize("options", [5, None, ClientOptions, {"key": "psk"}])
def test_options_are_client_options(options: Any) -> None:
    for call in (connect, connect_async, connect_broker, connect_broker_async):
        with pytest.raises(InvalidInput, match="options is of type [a-zA-Z]+, not ClientOptions"):
            call("http://h/a/b", options=options)


@pytest.mark.parametrize("key", ["psk_a b", " psk_a", "psk_a\n", "psk_ä", "\x7f"])
def test_a_key_that_cannot_be_one_is_refused_without_showing_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="^key has characters") as refused:
        penstock.connect("http://h/a/b", key=key)
    assert key not in str(refused.value)
    monkeypatch.setenv("PENSTOCK_KEY", key)
    with pytest.raises(InvalidInput, match="^PENSTOCK_KEY has characters"):
        penstock.connect("http://h/a/b")


def test_a_password_in_a_url_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidInput) as refused:
        broker_address("http://user:secret@h")
    assert "secret" not in str(refused.value)


def test_the_typed_options_of_open_are_those_of_a_client_and_a_queue() -> None:
    options = [field.name for field in fields(ClientOptions)]
    assert list(ClientKeywords.__annotations__) == ["queue", *options]
    assert OpenOptions.__optional_keys__ == {*QueueOptions.__annotations__, "queue", *options}
