"""Answers that are read and heard: a stream and a whole answer hold the same, however the events are cut."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.messages import AnyEvent, Audio, Chunk, Delta, Done, Finish, Usage
from app.protocol.generation import Identity
from app.protocol.spokenanswer import SpokenChunks, SpokenMessage, Voicing
from tests.routes.serving import events

IDENTITY = Identity("id", 1, "m")


def voicing(readable: bool, separate: bool = False) -> Voicing:
    return Voicing("audio-1", 7, readable, separate)


def piece(sound: bytes) -> Audio:
    return Audio(0, memoryview(b64encode(sound)), "pcm", 24_000, len(sound) // 2)


def full(text: str) -> Chunk:
    return Chunk(0, msgspec.json.encode({"delta": {"content": text}}))


SAID = st.lists(
    st.text(max_size=5).map(lambda text: Delta(0, text)) | st.text(max_size=5).map(full) | st.just(piece(b"abc")),
    max_size=8,
)
END: list[AnyEvent] = [Usage(3, 9), Finish(0, "stop"), Done()]


@given(SAID, st.booleans())
def test_a_stream_says_what_was_said(said: list[AnyEvent], readable: bool) -> None:
    writer = SpokenChunks(IDENTITY, "never", voicing(readable))
    deltas = [x["choices"][0]["delta"] for x in events(writer.open() + writer.write([*said, *END]) + writer.close())]
    words = "".join(
        event.text if isinstance(event, Delta) else json.loads(event.fields)["delta"]["content"]
        for event in said
        if isinstance(event, Delta | Chunk)
    )
    assert "".join(delta.get("content", "") for delta in deltas) == (words if readable else "")
    audio = [delta["audio"] for delta in deltas if "audio" in delta]
    assert "".join(part.get("transcript", "") for part in audio) == words
    assert [part["data"] for part in audio if "data" in part] == ["YWJj" for x in said if isinstance(x, Audio)]
    assert (audio[0], audio[-1]) == ({"id": "audio-1"}, {"expires_at": 7})


@given(st.lists(st.text(max_size=5).map(lambda text: Delta(0, text)) | st.just(piece(b"abc")), max_size=8))
def test_a_whole_answer_holds_what_its_stream_does(said: list[AnyEvent]) -> None:
    for readable in (True, False):
        message = whole([*said, *END], voicing(readable))["choices"][0]["message"]
        words = "".join(event.text for event in said if isinstance(event, Delta))
        assert message["audio"]["transcript"] == words
        assert message["content"] == ((words or None) if readable else None)
        assert message["audio"]["data"] == "YWJj" * sum(isinstance(event, Audio) for event in said)


def whole(said: list[AnyEvent], voice: Voicing) -> Any:
    answer = SpokenMessage(IDENTITY, voice)
    for event in said:
        answer.add([event])
    return json.loads(answer.encode())


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("usage", ["never", "last", "always"])
def test_how_a_batch_is_cut_makes_no_difference(usage: Any, separate: bool) -> None:
    said: list[AnyEvent] = [Delta(0, "a"), piece(b"abc"), Usage(1, 2), Delta(0, "", 1), full("b"), full(""), *END]
    one, many = (SpokenChunks(IDENTITY, usage, voicing(True, separate)) for _ in range(2))
    together = one.open() + one.write(said) + one.close()
    apart = many.open() + b"".join(many.write([event]) for event in said) + many.close()
    assert together == apart
    assert len(events(together)) == (5 if separate else 7) + (usage != "never")
