"""Several hosts on this machine: network namespaces with addresses of their own, and a switch whose cables can be bad.

The switch is a thread of this process that passes packets from one TUN device to another: it can delay and lose them on
kernels that are built without netem. Needs root and `ip` (iproute2).
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from tests.servers import BIN, ROOT, Server

_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001
_FRAME = 1 << 16
_IPV4 = 4
_IDLE_S = 0.05

_networks = count(os.getpid() % 100)


class Host:
    """One host and its cable. `delay_s` and `loss` (0 to 1) hold for each packet that passes it, either way."""

    def __init__(self, network: int, number: int) -> None:
        self.address = f"10.77.{network}.{number}"
        self.namespace = f"omni-{network}-{number}"
        self.delay_s = 0.0
        self.loss = 0.0
        self.connected = True
        self.tun = _open_tun(f"ot{network}n{number}")
        _ip("netns", "add", self.namespace)
        _ip("link", "set", f"ot{network}n{number}", "netns", self.namespace)
        self.ip("link", "set", "lo", "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", f"ot{network}n{number}")
        self._device = f"ot{network}n{number}"
        self.ip("link", "set", self._device, "up")

    def ip(self, *args: str) -> None:
        """Run `ip` on that host."""
        _ip("-n", self.namespace, *args)

    def link(self, state: str) -> None:
        """Set its link "up" or "down"; a process there sees that its network is gone."""
        self.ip("link", "set", self._device, state)

    def start(self, *args: str, env: dict[str, str] | None = None, port: int = 0) -> Server:
        """Run a command of this environment on that host."""
        line = ("/usr/sbin/ip", "netns", "exec", self.namespace, str(BIN / args[0]), *args[1:])
        return Server(line, env or {}, cwd=ROOT, port=port, host=self.address)

    def remove(self) -> None:
        os.close(self.tun)
        _ip("netns", "del", self.namespace)


class Network:
    """`hosts` hosts and this process (address .254) on one switch."""

    def __init__(self, hosts: int) -> None:
        self._number = next(_networks) % 250
        self.hosts = [Host(self._number, number + 1) for number in range(hosts)]
        self._uplink = f"ot{self._number}up"
        self._ours = _open_tun(self._uplink)
        _ip("addr", "add", f"10.77.{self._number}.254/24", "dev", self._uplink)
        _ip("link", "set", self._uplink, "up")
        self._by_address = {_packed(host.address): host for host in self.hosts}
        self._dice = random.Random(0)
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        ports = {host.tun: host for host in self.hosts} | {self._ours: None}
        order, later = count(), []
        while not self._ended:
            wait = min(_IDLE_S, later[0][0] - time.monotonic()) if later else _IDLE_S
            for port in select.select(list(ports), [], [], max(0.0, wait))[0]:
                packet = os.read(port, _FRAME)
                if packet[0] >> 4 != _IPV4:
                    continue
                target = self._by_address.get(packet[16:20])
                ends = [host for host in (ports[port], target) if host is not None]
                if all(host.connected and self._dice.random() >= host.loss for host in ends):
                    due = time.monotonic() + sum(host.delay_s for host in ends)
                    heapq.heappush(later, (due, next(order), target, packet))
            while later and later[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(later)
                self._deliver(self._ours if target is None else target.tun, packet)

    @staticmethod
    def _deliver(port: int, packet: bytes) -> None:
        try:
            os.write(port, packet)
        except OSError:  # its link is down
            return

    def close(self) -> None:
        self._ended = True
        self._thread.join(10)
        for host in self.hosts:
            host.remove()
        os.close(self._ours)


@contextmanager
def network(hosts: int) -> Iterator[Sequence[Host]]:
    """So many hosts until the block ends; processes on them are the caller's to end."""
    made = Network(hosts)
    try:
        yield made.hosts
    finally:
        made.close()


def _open_tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _TUN_WITHOUT_HEADER))
    return device


def _ip(*args: str) -> None:
    done = subprocess.run(["/usr/sbin/ip", *args], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 0, f"ip {' '.join(args)}: {done.stderr}"


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))
