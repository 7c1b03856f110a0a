"""Faults between hosts: a server on one, its text stage on two others, and what happens to cables and hosts.

`run` plays one row on hosts of its own and raises AssertionError where the outcome is not the expected one; it returns
how long it took until the fault was known, and from its end until everything was as before.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal, NamedTuple

import httpx

from tests.faults.streams import Streams
from tests.hosts import Host, network
from tests.servers import Server, wait_for

Moment = Literal["idle", "streams"]
Fault = Literal["cable", "link", "partition", "reboot", "head", "drain", "weather"]

PATIENCE_S = 3.0
"""--omni-heartbeat-timeout here."""
DETECT_S = PATIENCE_S + 3.0
RECOVER_S = 20.0
STREAMS = 24
SCRIPT = {"tokens": 40, "token_s": 0.1}
BAD_WEATHER = {"delay_s": 0.2, "loss": 0.03}
"""Of each cable, one way: a round trip takes 400 ms at least."""
_PORT, _MASTER_PORT = 8091, 7700
_TOKEN = "between-hosts"
_PIPELINE = """\
pipeline: stub
stages:
  - {stage_id: 0, name: text, kind: stub, num_replicas: 2}
  - stage_id: 1
    name: speech
    kind: stub
    outputs: [audio]
    sources: [text]
    engine_args: {chats: false, speaks: true}
"""
HEARD = {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}}


class Times(NamedTuple):
    """Seconds until the fault was known, and until all was well again after its end."""

    detect_s: float
    recover_s: float


class Site:
    """Three hosts: `head` with the server and its speech stage, `near` and `far` with a replica of its text stage each.

    Every process that is started here ends with the site.
    """

    def __init__(self, hosts: tuple[Host, Host, Host], deploy: str) -> None:
        self.head, self.near, self.far = hosts
        self._deploy = deploy
        self._started: list[Server] = []
        self.workers = {host.address: self.start_worker(host) for host in (self.near, self.far)}
        self.server = self.start_server()

    def start_server(self) -> Server:
        line = ("omni-app", "serve", "stub", "--host", "0.0.0.0", "--port", str(_PORT), "--workers", "2")
        return self._start(self.head, *line, "--stage-id", "1", "--omni-heartbeat-timeout", str(PATIENCE_S))

    def start_worker(self, host: Host) -> Server:
        return self._start(host, "omni-app", "headless", "stub", "--stage-id", "0")

    def _start(self, host: Host, *line: str) -> Server:
        where = ("--omni-master-address", self.head.address, "--omni-master-port", str(_MASTER_PORT))
        common = (*where, "--omni-token", _TOKEN, "--deploy-config", self._deploy)
        self._started.append(host.start(*line, *common, port=_PORT))
        return self._started[-1]

    def destroy(self) -> None:
        for process in self._started:
            process.destroy()

    # ------------------------------------------------------------------------------------------------ looking at it

    def up(self) -> set[str]:
        """Addresses of the hosts whose text replica is up, as the server tells it."""
        try:
            stages = httpx.get(f"{self.server.url}/v1/omni/status", timeout=5).json()["stages"]
        except httpx.TransportError:
            return set()
        replicas = next(stage["replicas"] for stage in stages if stage["name"] == "text")
        hosts = (self.near.address, self.far.address)
        return {host for host in hosts for x in replicas if x["state"] == "up" and host in x["address"]}

    def wait_up(self, *hosts: Host, limit_s: float) -> float:
        """Wait until exactly these are up; for how long that took."""
        began, wanted = time.monotonic(), {host.address for host in hosts}
        wait_for(lambda: self.up() == wanted, limit_s, f"{sorted(wanted)} to be what is up", server=self.server)
        return time.monotonic() - began

    def settle(self, limit_s: float = RECOVER_S) -> float:
        """Wait until both are up and the server answers, in words and in sound; for how long that took."""
        took = self.wait_up(self.near, self.far, limit_s=limit_s)
        for number in range(4):
            assert self.chat(f"well {number}").json()["choices"][0]["message"]["content"].split() == [
                "well",
                str(number),
            ]
        sound = self.chat("said aloud", **HEARD)
        assert sound.status_code == 200, sound.text
        assert sound.json()["choices"][0]["message"]["audio"]["data"]
        return took

    def chat(self, content: str, **more: object) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": content}], **more}
        return httpx.post(f"{self.server.url}/v1/chat/completions", json=body, timeout=30)

    def streams(self) -> Streams:
        return Streams(self.server, STREAMS, stub=SCRIPT).wait_begun()


@contextmanager
def site() -> Iterator[Site]:
    """Up and running until the block ends."""
    with ExitStack() as stack:
        deploy = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".yaml"))
        deploy.write(_PIPELINE)
        deploy.flush()
        head, near, far = stack.enter_context(network(3))
        made = Site((head, near, far), deploy.name)
        stack.callback(made.destroy)
        made.server.wait_ready(60)
        made.settle()
        yield made


# ------------------------------------------------------------------------------------------------ faults


def _cable(made: Site) -> float:
    """Nothing passes to and from one host; no process there or here notices by itself."""
    made.near.connected = False
    return made.wait_up(made.far, limit_s=DETECT_S)


def _link(made: Site) -> float:
    made.near.link("down")
    return made.wait_up(made.far, limit_s=DETECT_S)


def _partition(made: Site) -> float:
    """The server is alone: it says so at once, and hangs nobody."""
    made.near.connected = made.far.connected = False
    took = made.wait_up(limit_s=DETECT_S)
    assert made.server.answers("/health", 503)
    assert made.chat("anybody there").status_code == 503
    return took


def _reboot(made: Site) -> float:
    """All that runs on one host is killed at once, and its kernel says nothing to anybody."""
    made.near.connected = False
    _kill(made.workers[made.near.address])
    return made.wait_up(made.far, limit_s=DETECT_S)


def _head(made: Site) -> float:
    _kill(made.server)
    began = time.monotonic()
    wait_for(lambda: not made.server.answers("/livez"), DETECT_S, "the end of the server")
    return time.monotonic() - began


def _drain(made: Site) -> float:
    worker = made.workers[made.near.address]
    worker.terminate()
    return made.wait_up(made.far, limit_s=DETECT_S)


def _weather(made: Site) -> float:
    """Slow cables that lose packets: everything takes longer, nothing is taken for dead."""
    for host in (made.near, made.far):
        host.delay_s, host.loss = BAD_WEATHER["delay_s"], BAD_WEATHER["loss"]
    answers = Streams(made.server, STREAMS, stub={"tokens": 10}).join(60)
    assert answers == {"done": STREAMS}, answers
    assert made.up() == {made.near.address, made.far.address}
    return 0.0


def _heal(made: Site) -> None:
    for host in (made.near, made.far):
        host.delay_s = host.loss = 0.0
        host.connected = True


def _link_up(made: Site) -> None:
    made.near.link("up")


def _boot_near(made: Site) -> None:
    made.near.connected = True
    made.workers[made.near.address] = made.start_worker(made.near)


def _boot_drained(made: Site) -> None:
    assert made.workers[made.near.address].wait(SCRIPT["token_s"] * SCRIPT["tokens"] + 10) == 0
    _boot_near(made)


def _boot_head(made: Site) -> None:
    made.server = made.start_server()
    made.server.wait_ready(30)


FAULTS: dict[Fault, tuple[Callable[[Site], float], Callable[[Site], None], frozenset[str]]] = {
    "cable": (_cable, _heal, frozenset({"done", "error"})),
    "link": (_link, _link_up, frozenset({"done", "error"})),
    "partition": (_partition, _heal, frozenset({"error"})),
    "reboot": (_reboot, _boot_near, frozenset({"done", "error"})),
    "head": (_head, _boot_head, frozenset({"cut"})),
    "drain": (_drain, _boot_drained, frozenset({"done"})),
    "weather": (_weather, _heal, frozenset({"done"})),
}
"""Each with what strikes, what ends it, and how streams that run meanwhile may end."""
ROWS = [(fault, moment) for fault in FAULTS for moment in ("idle", "streams")]


def strike(made: Site, fault: Fault, moment: Moment) -> Times:
    """Play one row at a site, which is as before afterwards."""
    hit, end, allowed = FAULTS[fault]
    streams = made.streams() if moment == "streams" else None
    detect_s = hit(made)
    if fault in ("cable", "link", "reboot", "drain"):
        assert made.chat("meanwhile").status_code == 200, "the other host serves"
    if streams is not None:
        outcomes = streams.join()
        assert outcomes.keys() <= allowed, f"{outcomes}\n{made.server.output()}"
        assert "done" not in allowed or outcomes["done"], f"the other host was not left alone: {outcomes}"
    end(made)
    return Times(detect_s, made.settle())


def run(fault: Fault, moment: Moment) -> Times:
    """One row on hosts of its own."""
    with site() as made:
        return strike(made, fault, moment)


def _kill(server: Server) -> None:
    for pid in server.tree():
        with suppress(ProcessLookupError):  # some end with others
            os.kill(pid, signal.SIGKILL)
    server.process.wait(10)
