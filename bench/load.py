"""The load generator, a process of its own: `python -m bench.load`, driven by lines on stdin and stdout.

For each wave: a Wave as JSON in, "ready" out once all connections are open, "go" in, "done" out, Seen as JSON out.

Light, so that it measures the server and not itself: while a wave runs it only appends what it reads to a list; every
answer is parsed after the clock has stopped.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import cast

from bench import sse

TOKENS = 64


@dataclass(frozen=True)
class Wave:
    """`streams` requests sent at once. `seed` makes the prompts of a wave differ from those of all others."""

    port: int
    streams: int
    seed: str
    limit_s: float = 120.0


@dataclass(frozen=True)
class Seen:
    """What a wave looked like to its clients. Lists have one entry per stream."""

    wall_s: float
    """From the first request to the last byte of all."""
    cpu_s: float
    """Processor time of the load generator itself."""
    ttft_s: list[float]
    """From a stream's request to its first chunk with text."""
    gaps_s: list[float]
    """The longest pause between two chunks."""
    total_s: list[float]
    chunks: list[int]
    """Chunks with text."""
    tokens: list[int]
    """By the server's own count."""
    reads: int
    """Reads from sockets in all: the chunks of a read arrived together."""


class _Stream(asyncio.Protocol):
    """One connection that sends one request and keeps all that comes back."""

    def __init__(self, request: bytes) -> None:
        self.reads: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._transport: asyncio.WriteTransport | None = None
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def start(self) -> None:
        assert self._transport is not None
        self.began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.perf_counter(), data))
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n":  # the end of a chunked body; an event never ends like this
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def request_bytes(wave: Wave, stream: int) -> bytes:
    """The HTTP request of one stream; the same for every server."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"{wave.seed} {stream}: tell me a long story about the sea."}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    encoded = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{wave.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(encoded)}\r\n\r\n"
    )
    return head.encode() + encoded


async def run_wave(wave: Wave, ready: Callable[[], None], done: Callable[[], None]) -> Seen:
    """Connect, call `ready` (which may block), send one wave, call `done`, and tell what was seen.

    Raises:
        TimeoutError: the answers are not complete within the wave's limit.
        RuntimeError: an answer is not a complete stream.
    """
    streams = [await _connect(wave, index) for index in range(wave.streams)]
    gc.collect()
    gc.disable()
    ready()
    cpu, begin = time.process_time(), time.perf_counter()
    for stream in streams:
        stream.start()
    async with asyncio.timeout(wave.limit_s):
        await asyncio.gather(*(stream.ended for stream in streams))
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    done()
    gc.enable()
    for stream in streams:
        stream.close()
    return _summary(streams, wall, cpu)


async def _connect(wave: Wave, index: int) -> _Stream:
    request = request_bytes(wave, index)
    _, stream = await asyncio.get_running_loop().create_connection(lambda: _Stream(request), "127.0.0.1", wave.port)
    return stream


def _summary(streams: list[_Stream], wall: float, cpu: float) -> Seen:
    answers = [sse.parse(stream.reads) for stream in streams]
    pairs = list(zip(streams, answers, strict=True))
    for stream, answer in pairs:
        if answer.status != 200 or not answer.done or not answer.content_times:
            raise RuntimeError(f"not a complete stream: {b''.join(data for _, data in stream.reads)[:2000]!r}")
    return Seen(
        wall_s=wall,
        cpu_s=cpu,
        ttft_s=[answer.content_times[0] - stream.began for stream, answer in pairs],
        gaps_s=[_longest_gap(answer.content_times) for answer in answers],
        total_s=[stream.reads[-1][0] - stream.began for stream in streams],
        chunks=[len(answer.content_times) for answer in answers],
        tokens=[answer.completion_tokens for answer in answers],
        reads=sum(len(stream.reads) for stream in streams),
    )


def _longest_gap(times: list[float]) -> float:
    return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _meet() -> None:
    _say("ready")
    sys.stdin.readline()


def main() -> None:
    """Serve waves until stdin ends."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while line := sys.stdin.readline():
            seen = runner.run(run_wave(Wave(**json.loads(line)), _meet, lambda: _say("done")))
            _say(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
