"""A web server on 127.0.0.1 that answers with raw bytes, and a resolver that knows which names lead where."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from aiohttp.abc import AbstractResolver, ResolveResult

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Web:
    """`pages` by path; a page is the whole raw response, or a function that writes it."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | Answer] = {}
        self.requests: list[str] = []
        self.heads: list[str] = []
        self.port = 0
        self.connections: set[asyncio.Task[None]] = set()

    def url(self, path: str, host: str = "media.test") -> str:
        return f"http://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            self.requests.append(path)
            self.heads.append(head)
            page = self.pages[path]
            if isinstance(page, bytes):
                writer.write(page)
                await writer.drain()
            else:
                await page(writer)


@asynccontextmanager
async def serving() -> AsyncIterator[Web]:
    web = Web()
    server = await asyncio.start_server(web._serve, "127.0.0.1", 0)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        for connection in web.connections:
            connection.cancel()
        await asyncio.gather(*web.connections, return_exceptions=True)  # no socket is left for the collector to find


def ok(body: bytes, *headers: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"\r\n".join([b"HTTP/1.1 200 OK", f"content-length: {size}".encode(), *map(str.encode, headers), b"", body])


def moved(location: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()


class Names(AbstractResolver):
    """Answers from a table; the answers of one name are given in turn, the last one for ever."""

    def __init__(self, **answers: list[str]) -> None:
        self._answers = {name.replace("_", "."): addresses for name, addresses in answers.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        if host not in self._answers:
            raise OSError(f"no address for {host}")
        addresses = self._answers[host]
        address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""
