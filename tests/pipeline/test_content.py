from __future__ import annotations

import json
from typing import Any

from app.cluster.messages import AnyEvent, Chunk, Delta, Finish, Usage
from app.pipeline.content import content_of


def chunk(**choice: Any) -> Chunk:
    return Chunk(0, json.dumps(choice).encode())


def test_only_plain_words_are_content() -> None:
    events: list[AnyEvent] = [
        Delta(0, "**a** "),
        Usage(1, 1),
        chunk(delta={"reasoning": "hm"}),
        chunk(delta={"content": None, "tool_calls": [{"index": 0}]}),
        chunk(delta={"content": "b "}, logprobs={"content": [{"token": "b"}]}),
        chunk(logprobs=None),
        chunk(message={"role": "assistant", "content": "c", "reasoning": "d"}),
        Finish(0, "stop"),
    ]
    assert content_of(events) == "**a** b c"
