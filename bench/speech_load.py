"""The clients of bench.speech, a process of its own: `python -m bench.speech_load`, driven by lines of JSON.

Each line in is a Load with the port of a server, the line out what became of it. Answers are parsed when all is over.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from bench.speech_loop import RATE, Heard, Load, Seen, text

_READ = 1 << 18
_LIMIT_S = 120.0


@dataclass
class _Answer:
    """What came back for one request, read by read."""

    asked: float
    reads: list[tuple[float, bytes]] = field(default_factory=list)


async def run(load: Load) -> Seen:
    """The load on a server.

    Raises:
        TimeoutError: a request took too long.
        RuntimeError: an answer is not a whole sound.
    """
    answers: list[_Answer] = []
    numbers = itertools.count(load.first)
    begin = time.perf_counter()

    async def client() -> None:
        while time.perf_counter() - begin < load.seconds:
            async with asyncio.timeout(_LIMIT_S):
                answers.append(await _ask(load.port, next(numbers)))

    gc.disable()
    async with asyncio.TaskGroup() as clients:
        for _ in range(load.clients):
            clients.create_task(client())
    wall_s = time.perf_counter() - begin
    gc.enable()
    return Seen(wall_s, [_heard(answer) for answer in answers])


async def _ask(port: int, number: int) -> _Answer:
    body = json.dumps({"input": text(number), "response_format": "pcm", "stream_format": "audio", "seed": 1}).encode()
    head = (
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_READ)
    answer = _Answer(time.perf_counter())
    writer.write(head.encode() + body)
    while data := await reader.read(_READ):
        answer.reads.append((time.perf_counter(), data))
    writer.close()
    return answer


def _heard(answer: _Answer) -> Heard:
    raw = b"".join(data for _, data in answer.reads)
    head, _, body = raw.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0] or b"chunked" not in head.lower() or not raw.endswith(b"0\r\n\r\n"):
        raise RuntimeError(f"not a whole sound: {raw[:1000]!r}")
    seen, first = 0, 0.0
    for when, data in answer.reads:
        seen += len(data)
        if seen > len(head) + 10:  # more than the blank line and a chunk's length
            first = when
            break
    return Heard(first - answer.asked, answer.reads[-1][0] - answer.asked, sum(_chunks(body)) / 2 / RATE)


def _chunks(body: bytes) -> Iterator[int]:
    """The sizes of the chunks of a chunked body."""
    place = 0
    while place < len(body):
        end = body.index(b"\r\n", place)
        yield (size := int(body[place:end], 16))
        place = end + 2 + size + 2


def main() -> None:
    """Serve loads until stdin ends."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            print(json.dumps(asdict(runner.run(run(Load(**json.loads(line)))))), flush=True)


if __name__ == "__main__":
    main()
