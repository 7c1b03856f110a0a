"""What users report of servers built on Litestar and Granian, and of clients, proxies and scrapers in front of them.

Numbers are those of the report that a test plays.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpx
import pytest

from app.telemetry import families
from tests.compat.wire import CHAT, JSON, Wire, head, metric
from tests.servers import Server, start_server, wait_for

KEY = "key-of-the-tests"
WITH_KEY = {**JSON, "Authorization": f"Bearer {KEY}"}
LIMIT = 64 << 20
SLOW = {"tokens": 100_000, "token_s": 0.01}
DONE = b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server with two replicas of the stub for all tests of this file."""
    overrides = json.dumps({"0": {"num_replicas": 2}})
    env = {"OMNI_MODEL": "stub", "OMNI_API_KEY": KEY, "OMNI_MAX_BODY_BYTES": str(LIMIT)}
    with start_server(env={**env, "OMNI_STAGE_OVERRIDES": overrides, "OMNI_SSE_KEEP_ALIVE": "0.2"}) as server:
        yield server.wait_ready(60)


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "one two three"}], **fields}).encode()


def running(server: Server) -> float:
    return metric(server, "omni_requests_running", KEY)


# -------------------------------------------------------------------------------------------------- HTTP/2 (141-143)


class Http2:
    """An HTTP/2 client on one connection, without TLS and without an upgrade."""

    def __init__(self, server: Server) -> None:
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.received: dict[int, bytes] = {}
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self.connection.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self._socket.sendall(self.connection.data_to_send())

    def chat(self, **fields: Any) -> int:
        """Ask for a stream; its number."""
        stream = self.connection.get_next_available_stream_id()
        pseudo = [(":method", "POST"), (":path", CHAT), (":scheme", "http"), (":authority", "test")]
        headers = [(name.lower(), value) for name, value in WITH_KEY.items()]
        self.connection.send_headers(stream, [*pseudo, *headers])
        self.connection.send_data(stream, body(stream=True, **fields), end_stream=True)
        self.received[stream] = b""
        self.flush()
        return stream

    def read_until(self, stream: int, mark: bytes) -> bytes:
        """What has come on a stream once `mark` is part of it."""
        while mark not in self.received[stream]:
            piece = self._socket.recv(1 << 16)
            assert piece, "the server closed the connection"
            for event in self.connection.receive_data(piece):
                if isinstance(event, h2.events.DataReceived):
                    self.received[event.stream_id] += event.data
                    self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                assert not isinstance(event, h2.events.ConnectionTerminated), event
            self.flush()
        return self.received[stream]

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("script", [SLOW, {"hang_after": 1}], ids=["busy", "silent"])
def test_143_a_stream_that_is_reset_ends_its_work_and_no_other(server: Server, script: dict[str, Any]) -> None:
    """141, 142, 143: a browser resets the stream and keeps the connection."""
    with closing(Http2(server)) as client:
        kept = client.chat(stub={"tokens": 30, "token_s": 0.1})
        left = client.chat(stub=script)
        client.read_until(left, b'"content":')
        client.connection.reset_stream(left)
        client.flush()
        wait_for(lambda: running(server) <= 1, 2, "the end of the reset one's work", period=0.02)
        text = client.read_until(kept, DONE)
        assert b'"finish_reason":"stop"' in text
        assert text.count(b'"content":"w') == 30
    assert running(server) == 0


def test_143_a_connection_that_is_closed_ends_all_its_streams(server: Server) -> None:
    with closing(Http2(server)) as client:
        streams = [client.chat(stub=SLOW) for _ in range(8)]
        for stream in streams:
            client.read_until(stream, b'"content":')
        assert running(server) == 8
    wait_for(lambda: running(server) == 0, 10, "the end of their work")


# ------------------------------------------------------------------------------------------------ old and odd clients


def test_http_1_0_clients_get_streams_without_chunks(server: Server) -> None:
    """What nginx speaks to a server unless it is told otherwise."""
    content = body(stream=True, stub={"tokens": 3})
    with Wire(server) as wire:
        request = head("POST", CHAT, {**WITH_KEY, "Content-Length": str(len(content))}).replace(
            b"HTTP/1.1", b"HTTP/1.0"
        )
        wire.socket.sendall(request + content)
        answer = wire.read_rest()
    fields, _, text = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in fields.lower()
    assert text.startswith(b"data: {")
    assert text.endswith(DONE)


def test_requests_that_are_sent_ahead_are_answered_in_turn(server: Server) -> None:
    with Wire(server) as wire:
        wire.send("POST", CHAT, body(stream=True, stub={"tokens": 5, "token_s": 0.05}), WITH_KEY)
        wire.send("POST", CHAT, body(), WITH_KEY)
        wire.send("GET", "/livez")
        first, second, third = wire.answer(), wire.answer(), wire.answer()
    assert DONE in first.body
    assert first.body.count(b'"content":"w') == 5
    assert json.loads(second.body)["choices"][0]["message"]["content"] == "one two three "
    assert (third.status, third.body) == (200, b'{"status":"ok"}')


def test_a_fault_stays_with_its_request(server: Server) -> None:
    """45: of 20 at once one makes the engine fail."""

    def ask(number: int) -> int:
        with Wire(server) as wire:
            fields = {"stub": {"fail_after": 1}} if number == 10 else {"stub": {"tokens": 3, "token_s": 0.05}}
            return wire.ask("POST", CHAT, body(**fields), WITH_KEY).status

    with ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(ask, range(20)))
    assert statuses == [200] * 10 + [500] + [200] * 9
    assert server.answers("/health")


# --------------------------------------------------------------------------------------------------- uploads (154)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (CHAT, JSON, 401),
        (CHAT, WITH_KEY, 413),
        (CHAT, {**WITH_KEY, "Content-Type": "video/mp4"}, 415),
        ("/v1/nope", JSON, 404),
        ("/v1/models", JSON, 405),
    ],
)
@pytest.mark.parametrize("announced", [True, False], ids=["length", "chunked"])
def test_154_a_refusal_reaches_a_client_that_is_still_sending(
    server: Server, path: str, headers: dict[str, str], status: int, announced: bool
) -> None:
    size = LIMIT + (8 << 20)
    length = {"Content-Length": str(size)} if announced else {}
    pieces = (b" " * (1 << 20) for _ in range(size >> 20))
    answer = httpx.post(server.url + path, content=pieces, headers={**headers, **length}, timeout=60)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_154_an_answer_does_not_wait_for_the_upload(server: Server) -> None:
    with Wire(server) as wire:
        wire.socket.sendall(head("POST", CHAT, {**JSON, "Content-Length": str(200 << 20)}) + b" " * 1000)
        assert wire.answer().status == 401


# ------------------------------------------------------------------------------------------------- metrics (129, 130)


def test_130_every_family_is_there_for_every_replica(server: Server) -> None:
    """129, 130: with two replicas, before and after requests; nothing takes another's series away."""
    declared = {family.name for family in vars(families).values() if isinstance(family, families.Family)}
    for _ in range(2):
        with Wire(server) as wire:
            text = wire.ask("GET", "/metrics", headers=WITH_KEY).body.decode()
            assert declared <= set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
            assert set(re.findall(r'stub:steps_total\{.*replica="(\d)"', text)) == {"0", "1"}
            assert wire.ask("POST", CHAT, body(), WITH_KEY).status == 200
