"""The addresses and URLs that a webhook may call: the spelling of an address does not matter."""

import pytest

from penstock.broker.webhooks.addresses import check_address, check_url, parse_url
from penstock.errors import AddressRefused, InvalidInput

PRIVATE = {
    "loopback": "127.0.0.1",
    "loopback, another": "127.8.9.10",
    "this host": "0.0.0.0",
    "private, class A": "10.0.0.1",
    "private, class B": "172.16.0.1",
    "private, class C": "192.168.1.1",
    "carrier-grade NAT": "100.64.0.1",
    "link-local, cloud metadata": "169.254.169.254",
    "benchmarking": "198.18.0.1",
    "documentation": "192.0.2.1",
    "multicast": "224.0.0.1",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "IPv6 loopback": "::1",
    "IPv6 unspecified": "::",
    "IPv6 link-local": "fe80::1",
    "IPv6 unique local": "fc00::1",
    "IPv6 multicast": "ff02::1",
    "IPv6 documentation": "2001:db8::1",
    "IPv4-mapped": "::ffff:127.0.0.1",
    "IPv4-mapped, in hex": "::ffff:7f00:1",
    "IPv4-compatible": "::127.0.0.1",
    "IPv4-translated": "::ffff:0:127.0.0.1",
    "NAT64": "64:ff9b::7f00:1",
    "NAT64 of a private one": "64:ff9b::10.0.0.1",
    "NAT64 of a site's own": "64:ff9b:1::7f00:1",
    "6to4": "2002:7f00:1::",
    "6to4 of a private one": "2002:c0a8:101::1",
    "Teredo, server": "2001:0:7f00:1:0:0:f7f7:f7f7",
    "Teredo, client": "2001:0:808:808::80ff:fffe",
}
SPELLINGS = [
    "http://2130706433/",
    "http://0x7f000001/",
    "http://017700000001/",
    "http://0x7f.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0177.0.0.1/",
    "http://0/",
    "http://127.0.0.1./",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[0:0:0:0:0:ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://１２７.0.0.1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://localhost/",
    "http://LOCALHOST:8080/",
    "http://admin.localhost/",
    "https://100.64.0.1/",
    "https://224.0.0.1:443/",
]
PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", PRIVATE.values(), ids=PRIVATE.keys())
def test_a_private_address_is_refused(address: str) -> None:
    with pytest.raises(AddressRefused, match="is not a public address"):
        check_address(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_called(address: str) -> None:
    assert str(check_address(address)) == address


@pytest.mark.parametrize("url", SPELLINGS)
def test_every_spelling_of_a_private_address_is_refused_when_subscribing(url: str) -> None:
    with pytest.raises(AddressRefused):
        check_url(url, allow_private=False)


@pytest.mark.parametrize("url", SPELLINGS)
def test_private_addresses_are_called_where_that_is_configured(url: str) -> None:
    check_url(url, allow_private=True)


# -- URLs: only http(s), no user, nothing ambiguous ------------------------------------------------

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
