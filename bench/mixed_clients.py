"""Clients of every kind at once: those that read to the end, that leave, that send nonsense. A process of its own.

`python -m bench.mixed_clients PORT SECONDS` prints what they saw as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

LIMIT_S = 120.0
"""How long any one answer may take."""
PAUSE_S = 1.0
"""What a client waits at most before it asks again: an hour of load that keeps the machine busy, not saturated, so that
the times of /health are those of the server and not of the scheduler's queue."""
CHAT = "/v1/chat/completions"
NONSENSE: tuple[tuple[str, bytes, str], ...] = (
    (CHAT, b"{", "400"),
    (CHAT, b"[]", "400"),
    (CHAT, b"", "400"),
    (CHAT, b'{"messages": []}', "400"),
    (CHAT, b'{"messages": "hello"}', "400"),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}', "400"),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', "400"),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "model": "nobody"}', "404"),
    ("/v1/completions", b'{"prompt": "x", "max_tokens": 1000000}', "400"),
    ("/v1/nothing", b"{}", "404"),
)
"""Path, body, and the status that it has to get."""


async def exchange(port: int, path: str, body: bytes, leave_after_s: float | None = None) -> bytes:
    """The whole answer as it came; what had come by the time that the client left.

    Raises:
        OSError: no connection, or it broke.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    answer = b""
    try:
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        async with asyncio.timeout(leave_after_s or LIMIT_S):
            while piece := await reader.read(1 << 16):
                answer += piece
    except TimeoutError:
        if leave_after_s is None:
            raise
    finally:
        writer.close()
    return answer


def chat(tokens: int, *, stream: bool) -> bytes:
    """The body of a request for so many tokens."""
    messages = [{"role": "user", "content": "word " * random.randint(1, 100)}]
    return json.dumps({"messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": stream}).encode()


async def read_stream(port: int) -> str:
    answer = await exchange(port, CHAT, chat(random.randint(8, 96), stream=True))
    return "done" if b'"finish_reason":"length"' in answer and b"data: [DONE]" in answer else seen(answer)


async def read_whole(port: int) -> str:
    answer = await exchange(port, CHAT, chat(random.randint(8, 96), stream=False))
    return "done" if b'"finish_reason":"length"' in answer else seen(answer)


async def leave(port: int) -> str:
    await exchange(port, CHAT, chat(500, stream=random.random() < 0.5), leave_after_s=random.uniform(0.01, 1.5))
    return "left"


async def talk_nonsense(port: int) -> str:
    path, body, expected = random.choice(NONSENSE)
    answer = await exchange(port, path, body)
    return "refused" if status(answer) == expected and b'"error":' in answer else f"{body[:60]!r}: {seen(answer)}"


def status(answer: bytes) -> str:
    return answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/") else "nothing"


def seen(answer: bytes) -> str:
    """Something unexpected, short enough for a table."""
    return f"status {status(answer)}, ...{answer[-200:].decode(errors='replace')}"


KINDS: dict[str, tuple[Callable[[int], Awaitable[str]], int, str]] = {
    "stream": (read_stream, 16, "done"),
    "whole answer": (read_whole, 6, "done"),
    "leaves": (leave, 6, "left"),
    "nonsense": (talk_nonsense, 2, "refused"),
}
"""What a client does, how many do it at a time, and how each time should end."""


async def client(name: str, port: int, end: float, counts: Counter[str], unexpected: Counter[str]) -> None:
    ask, _, expected = KINDS[name]
    while time.monotonic() < end:
        try:
            outcome = await ask(port)
        except (OSError, TimeoutError) as error:
            outcome = f"{type(error).__name__}: {error}"
        counts[name] += 1
        if outcome != expected:
            unexpected[f"{name}: {outcome}"] += 1
        await asyncio.sleep(random.uniform(0.0, PAUSE_S))


async def run(port: int, seconds: float) -> dict[str, Any]:
    """All kinds of clients at once for so long; how often each asked, and every outcome that was not the right one."""
    counts: Counter[str] = Counter()
    unexpected: Counter[str] = Counter()
    end = time.monotonic() + seconds
    await asyncio.gather(
        *(client(name, port, end, counts, unexpected) for name, (_, many, _) in KINDS.items() for _ in range(many))
    )
    return {"counts": dict(counts), "unexpected": dict(unexpected.most_common(20))}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(int(sys.argv[1]), float(sys.argv[2])))))
