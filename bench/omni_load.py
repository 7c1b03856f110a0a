"""The clients of bench.omni, a process of its own: `python -m bench.omni_load`, driven by lines of JSON.

Each line in is a Load with the port of a server, the line out what became of it. Answers are parsed when all is over.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.omni_loop import CODES, RATE, TOKENS, VOICE, Heard, Load, Seen, question

_LIMIT_S = 300.0


@dataclass
class _Answer:
    """What came back for one request, line by line."""

    asked: float
    lines: list[tuple[float, bytes]] = field(default_factory=list)


def body(number: int) -> dict[str, Any]:
    """Conversation `number` as a request: greedy, as long as transformers' answer, in bare samples."""
    return {
        "messages": [{"role": "user", "content": question(number)}],
        "modalities": ["text", "audio"],
        "audio": {"voice": VOICE, "format": "pcm16", "seed": 1},
        "stream": True,
        "max_tokens": TOKENS,
        "temperature": 0,
        "sampling_params_list": [None, {"temperature": 0, "max_tokens": CODES}, None],
    }


async def run(load: Load) -> Seen:
    """The load on a server.

    Raises:
        TimeoutError: a request took too long.
        RuntimeError: an answer is not whole.
    """
    answers: list[_Answer] = []

    async def client(place: int) -> None:
        for turn in range(load.rounds):
            async with asyncio.timeout(_LIMIT_S):
                answers.append(await _ask(load.port, load.first + place * load.rounds + turn))

    gc.disable()
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as clients:
        for place in range(load.clients):
            clients.create_task(client(place))
    wall_s = time.perf_counter() - begin
    gc.enable()
    return Seen(wall_s, [_heard(answer) for answer in answers])


async def _ask(port: int, number: int) -> _Answer:
    content = json.dumps(body(number)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    answer = _Answer(time.perf_counter())
    writer.write(head.encode() + content)
    while line := await reader.readline():
        answer.lines.append((time.perf_counter(), line))
    writer.close()
    return answer


def _heard(answer: _Answer) -> Heard:
    text_s = first_s = 0.0
    size = tokens = 0
    for when, line in answer.lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        for choice in event.get("choices", ()):
            if choice["delta"].get("content"):
                text_s = text_s or when - answer.asked
            if data := (choice["delta"].get("audio") or {}).get("data"):
                first_s = first_s or when - answer.asked
                size += len(base64.b64decode(data))
    if not size or not any(line == b"data: [DONE]\n" for _, line in answer.lines):
        raise RuntimeError(f"not a whole answer: {b''.join(line for _, line in answer.lines)[:2000]!r}")
    return Heard(text_s, first_s, answer.lines[-1][0] - answer.asked, size / 2 / RATE, tokens or TOKENS)


def main() -> None:
    """Serve loads until stdin ends."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            print(json.dumps(asdict(runner.run(run(Load(**json.loads(line)))))), flush=True)


if __name__ == "__main__":
    main()
