"""What is judged is the address, however it is spelled and whatever it is wrapped in."""

import pytest

from penstock.broker.webhooks.addresses import check_address
from penstock.broker.webhooks.urls import check_url
from penstock.errors import AddressRefused

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
