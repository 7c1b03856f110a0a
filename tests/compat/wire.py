"""HTTP/1.1 by hand, for clients and proxies that no library plays: they stop, half close, do not read, do not wait."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from types import TracebackType
from typing import Any, NamedTuple

from tests.servers import Server, free_port

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
_END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class Answer(NamedTuple):
    """One response; names of headers in lower case. `body` as on the wire, framing of chunks included."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The value under "error", which has OpenAI's four fields and nothing beside it."""
        decoded = json.loads(self.body)
        assert set(decoded) == {"error"}, decoded
        error: dict[str, Any] = decoded["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        return error


def head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request; the body is up to the caller."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + _END_OF_HEAD


class Wire:
    """One connection to a server."""

    def __init__(self, server: Server, *, receive_buffer: int = 0, limit_s: float = 30) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(limit_s)
        self.socket.connect(("127.0.0.1", server.port))
        self._read = bytearray()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """A whole request, head and body apart as many clients send them."""
        length = {"Content-Length": str(len(body))} if body or method == "POST" else {}
        self.socket.sendall(head(method, path, {**length, **(headers or {})}))
        self.socket.sendall(body)

    def chat(self, **fields: Any) -> None:
        """A chat request."""
        body = {"messages": [{"role": "user", "content": "one two three"}], **fields}
        self.send("POST", CHAT, json.dumps(body).encode(), JSON)

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """A whole request and its answer."""
        self.send(method, path, body, headers)
        return self.answer(method)

    def answer(self, method: str = "GET") -> Answer:
        """The next answer, up to its end."""
        lines = self.read_until(_END_OF_HEAD)[: -len(_END_OF_HEAD)].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        return Answer(int(lines[0].split()[1]), headers, self._body(method, headers))

    def _body(self, method: str, headers: Mapping[str, str]) -> bytes:
        if method == "HEAD":
            return b""
        if headers.get("transfer-encoding") == "chunked":
            return self.read_until(_LAST_CHUNK)
        length = int(headers.get("content-length", "0"))
        while len(self._read) < length:
            self._receive()
        return self._take(length)

    def read_until(self, mark: bytes) -> bytes:
        """What comes up to and including `mark`."""
        searched = 0
        while (found := self._read.find(mark, searched)) < 0:
            searched = max(0, len(self._read) - len(mark))
            self._receive()
        return self._take(found + len(mark))

    def read_rest(self) -> bytes:
        """What comes until the server closes the connection."""
        while piece := self.socket.recv(1 << 16):
            self._read += piece
        return self._take(len(self._read))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._read[:size])
        del self._read[:size]
        return taken

    def _receive(self) -> None:
        piece = self.socket.recv(1 << 16)
        assert piece, f"the server closed the connection after {bytes(self._read[-500:])!r}"
        self._read += piece


class ImpatientProxy:
    """Relays one connection, and cuts it when the server is silent for `limit_s`, as nginx's proxy_read_timeout."""

    def __init__(self, server: Server, limit_s: float) -> None:
        self.port = free_port()
        self._upstream = server.port
        self._limit_s = limit_s
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        self._listener.close()
        upstream = socket.create_connection(("127.0.0.1", self._upstream), timeout=self._limit_s)
        with closing(client), closing(upstream), suppress(TimeoutError):
            upstream.sendall(client.recv(1 << 16))
            while piece := upstream.recv(1 << 16):
                client.sendall(piece)


def metric(server: Server, name: str, key: str = "", **labels: str) -> float:
    """The sum of the samples of a series in /metrics that have those labels."""
    with Wire(server) as wire:
        text = wire.ask("GET", "/metrics", headers={"Authorization": f"Bearer {key}"} if key else None).body.decode()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    samples = re.findall(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for given, value in samples if all(part in given.split(",") for part in wanted))
