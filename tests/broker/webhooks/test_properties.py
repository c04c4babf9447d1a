"""What holds for every address, every URL and every subscription."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.webhooks.addresses import MAX_URL, check_address, check_url, parse_url
from penstock.broker.webhooks.subscription import Secret, Style, Subscription, dump, load
from penstock.errors import AddressRefused, InvalidInput, PenstockError
from penstock.names import QueueName

WRAPPINGS: dict[str, Callable[[int], int]] = {
    "IPv4-mapped": lambda v4: 0xFFFF << 32 | v4,
    "IPv4-compatible": lambda v4: v4,
    "IPv4-translated": lambda v4: 0xFFFF << 48 | v4,
    "NAT64": lambda v4: 0x64FF9B << 96 | v4,
    "6to4": lambda v4: 0x2002 << 112 | v4 << 80 | 1,
    "Teredo client": lambda v4: 0x20010000 << 96 | 0x08080808 << 64 | (v4 ^ 0xFFFFFFFF),
    "Teredo server": lambda v4: 0x20010000 << 96 | v4 << 64 | (0x08080808 ^ 0xFFFFFFFF),
}
private_networks = st.sampled_from(
    [(0x7F000000, 24), (0x0A000000, 24), (0xC0A80000, 16), (0xA9FE0000, 16), (0x64400000, 22)]
)


@st.composite
def private_addresses(draw: st.DrawFn) -> IPv4Address:
    network, bits = draw(private_networks)
    return IPv4Address(network | draw(st.integers(0, (1 << bits) - 1)))


@given(private_addresses())
def test_no_private_address_is_called_however_wrapped_or_spelled(
    address: IPv4Address,
) -> None:
    number = int(address)
    spellings = [str(address), str(number), hex(number), f"0{number:o}"]
    for spelling in spellings:
        with pytest.raises(AddressRefused):
            check_url(f"http://{spelling}/", allow_private=False)
    for wrap in WRAPPINGS.values():
        wrapped = IPv6Address(wrap(number))
        with pytest.raises(AddressRefused):
            check_address(str(wrapped))
        with pytest.raises(AddressRefused):
            check_url(f"http://[{wrapped}]/", allow_private=False)


@given(st.ip_addresses())
def test_what_is_called_is_global(address: IPv4Address | IPv6Address) -> None:
    try:
        check_address(str(address))
    except AddressRefused:
        return
    assert not (address.is_private or address.is_multicast or address.is_loopback) or (
        isinstance(address, IPv6Address) and int(address) >> 32 in (0xFFFF, 0x64FF9B << 64)
    )


urls = st.text(max_size=60) | st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https", "HTTP", "ftp"]),
    st.text(alphabet="abc.:@[]%01é/\\ ?#-", max_size=20),
    st.text(max_size=30),
)


@given(urls)
def test_any_text_is_a_url_that_can_be_called_or_is_refused(url: str) -> None:
    try:
        endpoint = parse_url(url)
    except InvalidInput:
        return
    assert len(url) <= MAX_URL
    assert endpoint.scheme in ("http", "https")
    assert 0 < endpoint.port < 65536
    for part in (endpoint.host, endpoint.target, endpoint.host_header):
        assert part.isascii()
        assert part.isprintable()
        assert " " not in part
    assert endpoint.target.startswith("/")
    assert "@" not in endpoint.host


names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,10}", fullmatch=True)
subscriptions = st.builds(
    Subscription,
    id=names,
    queue=st.builds(QueueName, names, names),
    url=st.text(),
    style=st.sampled_from(Style),
    group=names,
    owns_group=st.booleans(),
    secrets=st.lists(st.builds(Secret, st.text(), st.integers(0, 1 << 62)), max_size=3).map(tuple),
    retry_s=st.lists(st.floats(0, 1e6), max_size=3).map(tuple),
    created_at_ns=st.integers(0, 1 << 62),
    enabled=st.booleans(),
    disabled_because=st.text(),
)


@given(st.lists(subscriptions, max_size=2))
def test_what_is_stored_is_what_is_read(stored: list[Subscription]) -> None:
    try:
        document = dump(stored)
    except UnicodeEncodeError:  # a lone surrogate, which no request can bring in
        return
    assert load(document) == stored


@given(st.binary())
def test_a_document_of_anything_is_refused_with_an_error_that_the_register_knows(
    document: bytes,
) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError, PenstockError)):
        load(document)
