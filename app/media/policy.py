"""Which hosts media may be fetched from, by name, and which addresses may be connected to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

IPAddress = IPv4Address | IPv6Address
AddressPolicy = Callable[[IPAddress], bool]
"""Whether a connection to this address may be opened."""

ANY_HOST = "*"

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")

_GLOBAL_IPV6 = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
_NEVER = [
    ip_network(network)
    for network in (
        "100.64.0.0/10",  # carrier-grade NAT; metadata services of some clouds live here
        "168.63.129.16/32",  # Azure's host agent, although the address looks public
        "192.0.0.0/24",  # protocol assignments, and a metadata service
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # Teredo and other protocol assignments
        "2001:db8::/32",
        "2002::/16",  # 6to4: an IPv4 address inside
        "3fff::/20",
    )
]


def is_public(address: IPAddress) -> bool:
    """Whether `address` is an ordinary host on the public internet.

    Written as a list of what is allowed as far as possible: the `ipaddress` module calls some multicast, translated and
    reserved ranges global, differently in different versions of Python.
    """
    if isinstance(address, IPv6Address) and address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))  # networks without IPv4 reach all of it this way
    if any(address in network for network in _NEVER) or not address.is_global:
        return False
    if isinstance(address, IPv6Address):
        return address in _GLOBAL_IPV6 and not address.is_multicast
    return not (address.is_multicast or address.is_reserved)


class HostList:
    """Allowed hosts: `example.org` is that name alone, `*.example.org` every name below it, `*` any host.

    Names are compared in their ASCII form, as the resolver will see them.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises ValueError: an entry is not a host name; the message shows it."""
        self._names: set[str] = set()
        self._suffixes: list[str] = []
        for entry in entries:
            if entry.startswith("*."):
                self._suffixes.append("." + ascii_host(entry[2:]))
            else:
                self._names.add(entry if entry == ANY_HOST else ascii_host(entry))

    def __bool__(self) -> bool:
        return bool(self._names or self._suffixes)

    def __contains__(self, host: str) -> bool:
        name = host.lower().rstrip(".")
        return name in self._names or ANY_HOST in self._names or any(name.endswith(suffix) for suffix in self._suffixes)


def ascii_host(entry: str) -> str:
    """The host name in ASCII (IDNA), lower case; an IP address as it is.

    Raises:
        ValueError: it is something else, such as a URL or a host with a port.
    """
    try:
        host = entry.strip().rstrip(".").encode("idna").decode().lower()
        if not _NAME.fullmatch(host):
            ip_address(host)
    except ValueError as error:  # UnicodeError is one
        raise ValueError(f"{entry!r} is not a host name; give names such as example.org or *.example.org") from error
    return host
