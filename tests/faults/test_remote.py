"""Cables and hosts that fail, on three hosts: network namespaces with addresses of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.faults.remote import DETECT_S, ROWS, Fault, Moment, Site, site, strike


@pytest.fixture(scope="module")
def hosts() -> Iterator[Site]:
    with site() as made:
        yield made


@pytest.mark.parametrize(("fault", "moment"), ROWS)
def test_what_happens_between_hosts(hosts: Site, fault: Fault, moment: Moment) -> None:
    times = strike(hosts, fault, moment)
    sys.stdout.write(f"{fault}: known after {times.detect_s:.1f} s, well again {times.recover_s:.1f} s after its end\n")
    assert times.detect_s < DETECT_S


def test_a_replica_is_known_by_the_address_on_its_way_to_the_master(hosts: Site) -> None:
    """A second interface, which the others do not reach, is not chosen."""
    hosts.far.ip("tuntap", "add", "other0", "mode", "tun")
    hosts.far.ip("addr", "add", "192.168.77.1/24", "dev", "other0")
    hosts.far.ip("link", "set", "other0", "up")
    old = hosts.workers[hosts.far.address]
    assert old.stop() == 0
    hosts.workers[hosts.far.address] = hosts.start_worker(hosts.far)
    hosts.settle()
    assert f"tcp://{hosts.far.address}:" in hosts.server.get("/v1/omni/status").text
