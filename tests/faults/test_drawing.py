"""Pictures from a whole server with several API workers: clients that leave, replicas that die, links, previews."""

from __future__ import annotations

import json
import os
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.compat.wire import JSON, Wire, metric
from tests.servers import Server, start_server, wait_for

GENERATIONS, CHAT = "/v1/images/generations", "/v1/chat/completions"
SLOW = {"tokens": 200, "token_s": 0.02}
WORKERS = 3


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server with a stub that draws, two of its pictures at a time."""
    overrides = {"0": {"engine_args": {"chats": False, "draws": True, "slots": 2}}}
    env = {"OMNI_MODEL": "stub", "OMNI_STAGE_OVERRIDES": json.dumps(overrides), "GRANIAN_WORKERS": str(WORKERS)}
    with start_server(env=env) as server:
        yield server.wait_ready(60)


def ask(server: Server, path: str = GENERATIONS, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={"prompt": "x", **fields}, timeout=30)


def body_of(path: str, **fields: Any) -> bytes:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    return json.dumps(asked | fields).encode()


def steps(server: Server) -> float:
    return metric(server, "stub:steps_total")


def wait_idle(server: Server) -> None:
    def busy() -> float:
        return metric(server, "omni_requests_running") + metric(server, "omni_requests_waiting")

    wait_for(lambda: busy() == 0, 20, "the end of all requests", server=server)


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "avif"])
def test_a_picture_of_every_format(server: Server, format: str) -> None:
    answer = ask(server, output_format=format, size="96x64", seed=5).json()
    [item] = answer["data"]
    image = Image.open(BytesIO(b64decode(item["b64_json"], validate=True)))
    assert (str(image.format).lower(), image.size, item["seed"], answer["size"]) == (format, (96, 64), 5, "96x64")


def test_many_large_pictures_arrive_whole(server: Server) -> None:
    """More than a request's credit: the replica waits until the worker has taken what came before."""
    answer = ask(server, n=10, size="4096x4096", output_format="png", output_compression=100).json()
    assert [item["seed"] for item in answer["data"]] == list(range(10))
    for item in answer["data"]:
        assert Image.open(BytesIO(b64decode(item["b64_json"]))).size == (4096, 4096)


def test_previews_come_before_the_picture(server: Server) -> None:
    arrived = []
    body = {"prompt": "x", "stream": True, "partial_images": 2, "extra_params": {"stub": {"tokens": 4, "token_s": 0.2}}}
    with httpx.stream("POST", server.url + GENERATIONS, json=body, timeout=30) as answer:
        arrived += [(time.monotonic(), line) for line in answer.iter_lines() if line.startswith("event: ")]
    names = [line.rpartition(".")[2] for _, line in arrived]
    assert names == ["partial_image", "partial_image", "completed"]
    assert arrived[2][0] - arrived[0][0] > 0.4


def test_every_worker_serves_every_link(server: Server) -> None:
    url = ask(server, response_format="url").json()["data"][0]["url"]
    assert url.startswith(server.url)
    seen = {httpx.get(url, timeout=10).status_code for _ in range(4 * WORKERS)}
    assert seen == {200}
    [directory] = server.runtime.glob("omni-*/*/generated")
    assert [oct(path.stat().st_mode & 0o777) for path in (directory, next(directory.iterdir()))] == ["0o700", "0o600"]


# ------------------------------------------------------------------------------------------------ clients that leave


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", [GENERATIONS, CHAT])
def test_drawing_for_a_client_that_left_stops(server: Server, path: str, stream: bool) -> None:
    before = steps(server)
    with Wire(server) as wire:
        wire.send("POST", path, body_of(path, stream=stream, extra_params={"stub": SLOW}), JSON)
        wait_for(lambda: steps(server) > before + 5, 20, "the first steps")
    wait_idle(server)
    stopped = steps(server)
    assert stopped < before + SLOW["tokens"]
    time.sleep(0.3)
    assert steps(server) == stopped


def test_an_edit_for_a_client_that_left_stops(server: Server) -> None:
    before = steps(server)
    form = b"".join(
        b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % pair
        for pair in ((b"prompt", b"x"), (b"image", b"data:,x"), (b"extra_params", json.dumps({"stub": SLOW}).encode()))
    )
    with Wire(server) as wire:
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        wire.send("POST", "/v1/images/edits", form + b"--b--\r\n", headers)
        wait_for(lambda: steps(server) > before + 5, 20, "the first steps")
    wait_idle(server)
    stopped = steps(server)
    time.sleep(0.3)
    assert before < steps(server) == stopped < before + SLOW["tokens"]


def test_an_upload_that_is_given_up_leaves_nothing(server: Server) -> None:
    def open_files() -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in server.workers)

    before = open_files()
    for _ in range(5):
        with Wire(server) as wire:
            head = "POST /v1/images/edits HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n"
            kind = "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
            part = '--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            wire.socket.sendall((head + kind + part + "x" * 100_000).encode())
    wait_idle(server)
    wait_for(lambda: open_files() <= before, 10, "the connections to close")
    assert ask(server).status_code == 200


# ------------------------------------------------------------------------------------------------ replicas that fail


def test_a_replica_that_dies_is_replaced(server: Server) -> None:
    """Who waits for its picture is told when to come back; who has seen a preview, that no picture will follow."""
    for fields, code in (({}, "no_replica"), ({"stream": True, "partial_images": 1}, "replica_lost")):
        before = server.replicas
        answer = ask(server, **fields, extra_params={"stub": {"exit_after": 2, "tokens": 5, "token_s": 0.1}})
        assert f'"code":"{code}"' in answer.text
        assert answer.status_code == (200 if fields else 503)
        wait_for(lambda: server.answers() and server.replicas != before, 30, "a new replica", server=server)  # noqa: B023
    assert ask(server).status_code == 200


@pytest.mark.parametrize(
    ("path", "ends"), [(GENERATIONS, lambda text: "event: error" in text), (CHAT, lambda text: "[DONE]" in text)]
)
def test_a_stream_that_fails_says_so(server: Server, path: str, ends: Callable[[str], bool]) -> None:
    body = body_of(path, stream=True, extra_params={"stub": {"fail_after": 1}})
    answer = httpx.post(server.url + path, content=body, headers=JSON, timeout=30)
    assert answer.status_code == 200
    assert '"type":"server_error"' in answer.text
    assert ends(answer.text)


def test_what_the_replica_refuses_is_a_bad_request(server: Server) -> None:
    for path in (GENERATIONS, CHAT):
        body = body_of(path, stream=True, extra_params={"stub": {"refuse": "no such size"}})
        answer = httpx.post(server.url + path, content=body, headers=JSON, timeout=30)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "no such size")


def test_probes_are_quick_while_pictures_are_made(server: Server) -> None:
    """Files are made in the replica; an API worker only passes them on."""
    asking = threading.Thread(target=ask, args=(server,), kwargs={"n": 10, "size": "4096x4096"})
    asking.start()
    slowest = 0.0
    while asking.is_alive():
        started = time.monotonic()
        assert server.answers("/livez")
        slowest = max(slowest, time.monotonic() - started)
    assert slowest < 1
