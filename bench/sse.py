"""Reading an HTTP/1.1 answer of server-sent events by hand, with the time at which each event arrived."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass
class Answer:
    """What one streamed chat answer held. Times are those of the read that completed the event."""

    status: int = 0
    content_times: list[float] = field(default_factory=list)
    """One entry for each chunk with text."""
    text: str = ""
    completion_tokens: int = 0
    done: bool = False


def parse(reads: list[tuple[float, bytes]]) -> Answer:
    """The answer in the raw bytes of a connection, given as (time, data) of each read."""
    answer = Answer()
    head, body, events = b"", b"", b""
    for when, data in reads:
        if not answer.status:
            head += data
            if b"\r\n\r\n" not in head:
                continue
            head, _, data = head.partition(b"\r\n\r\n")
            answer.status = int(head.split(b" ", 2)[1])
        body += data
        text, body = _dechunk(body) if b"chunked" in head.lower() else (body, b"")
        events += text
        *complete, events = events.split(b"\n\n")
        for event in complete:
            _take(answer, event, when)
    return answer


def _dechunk(data: bytes) -> tuple[bytes, bytes]:
    """The payload of the complete HTTP chunks in `data`, and the rest."""
    payload = b""
    while (end := data.find(b"\r\n")) >= 0:
        size = int(data[:end].split(b";")[0], 16)
        if len(data) < end + 4 + size:
            break
        payload += data[end + 2 : end + 2 + size]
        data = data[end + 4 + size :]
    return payload, data


def _take(answer: Answer, event: bytes, when: float) -> None:
    if not event.startswith(b"data: "):
        return
    if event == b"data: [DONE]":
        answer.done = True
        return
    chunk = json.loads(event[6:])
    if chunk.get("usage"):
        answer.completion_tokens = chunk["usage"]["completion_tokens"]
    for choice in chunk.get("choices", ()):
        if content := choice["delta"].get("content"):
            answer.content_times.append(when)
            answer.text += content
