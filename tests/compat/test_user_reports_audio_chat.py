"""What users of such servers report of chats that are heard. Numbers are those of the report that a test plays."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.engines.stubspeech import ramp
from tests.compat.wire import CHAT
from tests.servers import Server

FRAME = 4800
"""Samples of one frame of the stub, which says two words."""
HEARD = {"modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "pcm16"}}


@pytest.fixture(scope="module")
def client(speaking_chats: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=speaking_chats.url, timeout=60) as client:
        yield client


def body(words: int, **fields: Any) -> dict[str, Any]:
    """A chat of so many words."""
    return {"messages": [{"role": "user", "content": "x"}], "stub": {"tokens": words}, **HEARD, **fields}


def ask(client: httpx.Client, asked: dict[str, Any]) -> Any:
    answer = client.post(CHAT, json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client: httpx.Client, asked: dict[str, Any]) -> list[Any]:
    text = client.post(CHAT, json=asked | {"stream": True}).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_085_a_stream_has_text_and_sound(client: httpx.Client) -> None:
    *chunks, done = stream(client, body(5))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "w0 w1 w2 w3 w4 "
    assert any(delta.get("audio", {}).get("data") for delta in deltas)
    assert (chunks[-1]["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")


def test_086_one_choice_holds_both(client: httpx.Client) -> None:
    [choice] = ask(client, body(5))["choices"]
    assert choice["message"]["content"] == choice["message"]["audio"]["transcript"]
    assert choice["message"]["audio"].keys() == {"id", "data", "expires_at", "transcript"}
    refused = client.post(CHAT, json=body(5, n=2))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


@pytest.mark.parametrize("words", [1, 2, 3, 4, 11])
def test_087_every_frame_comes_once_and_in_order(client: httpx.Client, words: int) -> None:
    expected = b"".join(ramp(frame * FRAME, FRAME) for frame in range((words + 1) // 2))
    assert b64decode(ask(client, body(words))["choices"][0]["message"]["audio"]["data"], validate=True) == expected
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(client, body(words))[:-1]]
    pieces = [delta.get("audio", {}).get("data", "") for delta in deltas]
    assert b64decode("".join(pieces), validate=True) == expected


@pytest.mark.parametrize("continuous", [False, True])
def test_089_tokens_of_text_and_sound(client: httpx.Client, continuous: bool) -> None:
    """7 tokens of text, and 4 for each of 4 frames of sound."""
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    *chunks, last, done = stream(client, body(7, stream_options=options))
    assert (last["choices"], done) == ([], "[DONE]")
    assert last["usage"]["completion_tokens"] == 23
    assert last["usage"]["completion_tokens_details"] == {"text_tokens": 7, "audio_tokens": 16}
    assert [bool(chunk["usage"]) for chunk in chunks] == [continuous] * len(chunks)
    whole = ask(client, body(7))["usage"]
    for name in ("completion_tokens", "completion_tokens_details"):
        assert whole[name] == last["usage"][name]
    assert whole["total_tokens"] == whole["prompt_tokens"] + 23


def test_092_text_alone_touches_no_other_stage(client: httpx.Client) -> None:
    def steps() -> list[str]:
        """What each stage has done, as it tells itself."""
        return [line for line in client.get("/metrics").text.splitlines() if line.startswith("stub:steps_total")]

    def of_the_speech(lines: list[str]) -> list[str]:
        return [line for line in lines if 'stage="1"' in line]

    before = steps()
    for fields in ({"modalities": ["text"], "audio": None}, {"modalities": None, "audio": None}):
        assert "audio" not in ask(client, body(5, **fields))["choices"][0]["message"]
    after = steps()
    assert before != after
    assert of_the_speech(before) == of_the_speech(after) != []
    ask(client, body(5))
    assert of_the_speech(steps()) != of_the_speech(after)
