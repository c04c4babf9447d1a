"""The URL of a webhook: only http(s), no user, and nothing that two readers read differently."""

import pytest

from penstock.broker.webhooks.urls import check_url, parse_url
from penstock.errors import InvalidInput

BAD = {
    "another scheme": "ftp://example.com/",
    "a file": "file:///etc/passwd",
    "no scheme": "example.com/hook",
    "no host": "http:///hook",
    "empty": "",
    "a user": "http://user@example.com/",
    "a password": "http://user:secret@example.com/",
    "a host hidden by an @": "http://example.com@127.0.0.1/",
    "a newline": "http://example.com/\r\nX-Evil: 1",
    "a space": "http://example.com/a b",
    "a backslash": "http://example.com\\@127.0.0.1/",
    "NUL": "http://example.com/\0",
    "port 0": "http://example.com:0/",
    "port too large": "http://example.com:99999/",
    "port no number": "http://example.com:http/",
    "an interface": "http://[fe80::1%25eth0]/",
    "a bad IPv6": "http://[::1/",
    "too long": "http://example.com/" + "a" * 2048,
}


@pytest.mark.parametrize("url", BAD.values(), ids=BAD.keys())
def test_a_url_that_is_not_one_to_call_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_url(url, allow_private=True)


def test_a_url_is_taken_apart_as_a_request_needs_it() -> None:
    assert parse_url("https://Hooks.Example.com:8443/in/%41?a=b&c=d#part") == (
        "https",
        "hooks.example.com",
        8443,
        "/in/%41?a=b&c=d",
        "hooks.example.com:8443",
    )
    assert parse_url("http://[2606:4700::1]:80")[1:] == ("2606:4700::1", 80, "/", "[2606:4700::1]")


def test_a_name_and_path_beyond_ascii_travel_as_ascii() -> None:
    endpoint = parse_url("http://bücher.example/straße")
    assert endpoint.host == "xn--bcher-kva.example"
    assert endpoint.target == "/stra%C3%9Fe"
