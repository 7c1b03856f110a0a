"""Many streams at once over plain sockets, and what became of each."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from tests.servers import Server, wait_for

_READ = 1 << 16
_TOKEN = re.compile('"content":"[^"]')
"""The first chunk, which only gives the role, has an empty content."""


class Stream:
    """One streamed chat request. `outcome`: "" while it runs, then one word or a status code.

    done: it ended as it should. error: it ended with an error event and [DONE]. cut: it ended without either.
    refused: nobody took the connection.
    """

    path = "/v1/chat/completions"
    asked: ClassVar[dict[str, Any]] = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    piece = _TOKEN

    def __init__(self) -> None:
        self.outcome = ""
        self.began = False
        self.text = ""

    async def run(self, host: str, port: int, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError:
            self.outcome = "refused"
            return
        try:
            content = json.dumps(self.asked | body).encode()
            head = f"POST {self.path} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(content)}\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + content)
            while piece := await reader.read(_READ):
                self.text += piece.decode()
                self.began = self.began or self.piece.search(self.text) is not None
        except OSError:
            pass  # cut; how far it came decides
        finally:
            writer.close()
        self.outcome = self._judge()

    def _judge(self) -> str:
        status = self.text.split(" ", 2)[1] if self.text else "cut"
        return self._end() if status == "200" else status

    def _end(self) -> str:
        if "data: [DONE]" not in self.text:
            return "cut"
        if '"error":' in self.text:
            return "error"
        return "done" if '"finish_reason":"' in self.text else "cut"


class SpeechStream(Stream):
    """One speech request with server-sent events; the outcomes are the same."""

    path = "/v1/audio/speech"
    asked: ClassVar[dict[str, Any]] = {"input": "x", "stream": True, "response_format": "pcm"}
    piece = re.compile("event: speech.audio.delta")

    def _end(self) -> str:
        if "event: error" in self.text:
            return "error"
        return "done" if "event: speech.audio.done" in self.text else "cut"


class Streams:
    """`count` streams with the same `body`, run by a thread until they end."""

    def __init__(
        self,
        server: Server,
        count: int,
        kind: type[Stream] = Stream,
        *,
        headers: Mapping[str, str] | None = None,
        **body: Any,
    ) -> None:
        self.all = [kind() for _ in range(count)]
        self._server = server
        self._body = body
        self._headers = headers or {}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        server = self._server
        await asyncio.gather(*(stream.run(server.host, server.port, self._body, self._headers) for stream in self.all))

    def wait_begun(self, limit_s: float = 20) -> Streams:
        """Wait until every stream has got a token."""
        wait_for(lambda: all(x.began or x.outcome for x in self.all), limit_s, "the streams", server=self._server)
        assert all(x.began for x in self.all), self.count()
        return self

    def count(self) -> Counter[str]:
        """How many ended how; those that still run under ""."""
        return Counter(stream.outcome for stream in self.all)

    def join(self, limit_s: float = 30) -> Counter[str]:
        """Wait for the end of all; how many ended how."""
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), f"streams that do not end: {self.count()}\n{self._server.output()}"
        return self.count()
