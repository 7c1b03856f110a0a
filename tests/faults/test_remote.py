"""Cables and hosts that fail, on three hosts: network namespaces with addresses of their own."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from tests.demo.eyes import look
from tests.faults.remote import DETECT_S, ROWS, Fault, Moment, Site, site, strike
from tests.hosts import Host, network
from tests.servers import Server


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


def test_text_speech_and_pictures_from_three_hosts() -> None:
    """The demo: its language model on the server's host, its voice and its painter on two others."""
    with network(3) as (head, near, far), ExitStack() as stack:
        where = ("--omni-master-address", head.address, "--omni-master-port", "7700", "--omni-token", "between-hosts")

        def start(host: Host, *line: str) -> Server:
            process = host.start("omni-app", *line, *where, env={"OMP_NUM_THREADS": "1"}, port=8091)
            stack.callback(process.destroy)
            return process

        start(near, "headless", "demo", "--stage-id", "1")
        start(far, "headless", "demo", "--stage-id", "2")
        server = start(head, "serve", "demo", "--stage-id", "0", "--host", "0.0.0.0", "--port", "8091")
        server.wait_ready(180)
        asked = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            said = client.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
            assert "Paris" in said
            spoken = client.post(
                "/v1/audio/speech", json={"input": "Hello from another host.", "response_format": "pcm"}
            )
            samples = np.frombuffer(spoken.content, np.int16)
            assert len(samples) > 24_000
            assert np.abs(samples).max() > 3_000
            drawn = client.post("/v1/images/generations", json={"prompt": "a red circle on a blue background"})
            picture = Image.open(BytesIO(base64.b64decode(drawn.json()["data"][0]["b64_json"])))
            background, _ = look(torch.from_numpy(np.asarray(picture.convert("RGB")).copy()))
            assert background == "blue"
            heard = client.post(
                "/v1/chat/completions",
                json=asked | {"modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "wav"}},
            )
            assert len(base64.b64decode(heard.json()["choices"][0]["message"]["audio"]["data"])) > 20_000
            stages = client.get("/v1/omni/status").json()["stages"]
        addresses = [stage["replicas"][0]["address"] for stage in stages]
        assert [host.address in address for host, address in zip((near, far), addresses[1:], strict=True)] == [
            True,
            True,
        ]
