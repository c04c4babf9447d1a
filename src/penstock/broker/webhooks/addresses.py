"""Which addresses a webhook may call.

Whoever may subscribe chooses a URL that the broker then calls from where it stands: inside a
private network, perhaps beside services that trust it. So only addresses that anyone on the
internet could call are called, and what is judged is the address itself, never its spelling.
"""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from penstock.errors import AddressRefused

Address = IPv4Address | IPv6Address

# IPv6 ranges whose last 32 bits are an IPv4 address that a gateway goes on to.
_ENDING_IN_IPV4 = (
    IPv6Network("::ffff:0:0/96"),  # IPv4-mapped
    IPv6Network("::/96"),  # IPv4-compatible, deprecated
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated
    IPv6Network("64:ff9b::/96"),  # NAT64
)
_SITES_OWN_NAT64 = IPv6Network("64:ff9b:1::/48")  # where in it an IPv4 address is, only they know


def check_address(text: str) -> Address:
    """The address, if a webhook may call it; AddressRefused otherwise.

    >>> check_address("93.184.216.34")
    IPv4Address('93.184.216.34')
    >>> check_address("64:ff9b::7f00:1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    penstock.errors.AddressRefused: 64:ff9b::7f00:1 (that is 127.0.0.1) is not a public address: ...
    """
    address = ip_address(text.partition("%")[0])
    for inner in (address, *_embedded(address)):
        if not _is_public(inner):
            shown = str(address) if inner == address else f"{address} (that is {inner})"
            raise AddressRefused(
                f"{shown} is not a public address: the broker calls private, loopback and "
                f"link-local ones only if the setting webhook_allow_private in [broker] "
                f"(PENSTOCK_BROKER_WEBHOOK_ALLOW_PRIVATE) is true"
            )
    return address


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and _ends_in_ipv4(address):
        return True  # judged by what is inside
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address in _SITES_OWN_NAT64
    )


def _embedded(address: Address) -> list[Address]:
    """The IPv4 addresses that an IPv6 address leads on to."""
    if isinstance(address, IPv4Address):
        return []
    found: list[Address] = []
    if _ends_in_ipv4(address):
        found.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    return found


def _ends_in_ipv4(address: IPv6Address) -> bool:
    if address.is_loopback or address.is_unspecified:
        return False  # ::1 and :: are in one of the ranges, and are what they are
    return any(address in network for network in _ENDING_IN_IPV4)
