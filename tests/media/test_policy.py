"""Addresses that may be connected to, and host names that may be asked for."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from app.media.policy import HostList, is_public

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808"]
NOT_PUBLIC = {
    "this host": "0.0.0.0",
    "loopback": "127.0.0.1",
    "loopback, other": "127.255.255.254",
    "private 10": "10.1.2.3",
    "private 172": "172.16.0.1",
    "private 172, last": "172.31.255.255",
    "private 192": "192.168.1.1",
    "link-local": "169.254.169.254",
    "CGNAT": "100.64.0.1",
    "CGNAT, cloud metadata": "100.100.100.200",
    "Azure host agent": "168.63.129.16",
    "protocol assignments": "192.0.0.192",
    "documentation": "192.0.2.1",
    "benchmarking": "198.18.0.1",
    "6to4 relay": "192.88.99.1",
    "multicast": "224.0.0.1",
    "multicast, global scope": "233.252.0.1",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "v6 unspecified": "::",
    "v6 loopback": "::1",
    "v6 link-local": "fe80::1",
    "v6 link-local with zone": "fe80::1%eth0",
    "v6 unique local": "fd00:ec2::254",
    "v6 site-local": "fec0::1",
    "v6 multicast": "ff02::1",
    "v6 multicast, global scope": "ff0e::1",
    "v6 documentation": "2001:db8::1",
    "v6 documentation, new": "3fff::1",
    "v6 unassigned": "4000::1",
    "v6 SRv6": "5f00::1",
    "mapped, private": "::ffff:10.0.0.1",
    "mapped, public": "::ffff:8.8.8.8",
    "compatible": "::127.0.0.1",
    "6to4 of loopback": "2002:7f00:1::1",
    "6to4 of a public address": "2002:808:808::1",
    "Teredo": "2001:0:7f00:1::1",
    "NAT64 of loopback": "64:ff9b::7f00:1",
    "NAT64 of metadata": "64:ff9b::a9fe:a9fe",
    "NAT64, local use": "64:ff9b:1::808:808",
}


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC.values(), ids=NOT_PUBLIC.keys())
def test_other_addresses(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    ("entry", "host", "allowed"),
    [
        ("example.org", "example.org", True),
        ("example.org", "EXAMPLE.org.", True),
        ("Example.ORG", "example.org", True),
        ("example.org", "a.example.org", False),
        ("example.org", "example.org.evil.test", False),
        ("example.org", "notexample.org", False),
        ("*.example.org", "a.example.org", True),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "notexample.org", False),
        ("bücher.example", "xn--bcher-kva.example", True),
        ("*", "anything.test", True),
        ("93.184.216.34", "93.184.216.34", True),
        ("2606:4700::1111", "2606:4700::1111", True),
    ],
)
def test_host_list(entry: str, host: str, allowed: bool) -> None:
    assert (host in HostList([entry])) is allowed


@pytest.mark.parametrize(
    "entry", ["http://example.org", "example.org/a", "example.org:80", "u@example.org", "", "*.", "a*b"]
)
def test_entries_that_are_no_host_names(entry: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        HostList([entry])


def test_an_empty_list_is_false() -> None:
    assert not HostList([])
    assert HostList(["*.example.org"])
