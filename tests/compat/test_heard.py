"""The demo is understood: its voice in every format, whole and streamed, over a socket, and in chats."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import numpy as np
import openai
import pytest
from websockets.sync.client import connect

from app.protocol.speech import CONTENT_TYPES
from app.protocol.speechtask import SpeechFormat
from tests.compat.heard import (
    QUESTIONS,
    UNDERSTOOD,
    VOICE_RATE,
    WAYS,
    answer_error_rate,
    error_rate,
    played,
    speak,
)
from tests.hearing import SENTENCES, transcribe, word_error_rate
from tests.servers import Server
from tests.sounds import decode

SHARES = np.array_split(np.array(SENTENCES), len(WAYS))
"""Each way gets sentences of its own: all are said once. Every way with every sentence is in the soak."""


def test_the_measure() -> None:
    assert word_error_rate("It's 25 past four.", "its twenty-five past FOUR") == 0
    assert word_error_rate("one two three four", "one too three for you") == 0.75
    assert word_error_rate("one two", "") == 1


@pytest.mark.parametrize(("way", "sentences"), list(zip(WAYS, SHARES, strict=True)))
def test_a_recogniser_understands_it(
    voice: Server, way: tuple[SpeechFormat, bool], sentences: np.ndarray[tuple[int], np.dtype[np.str_]]
) -> None:
    format, streamed = way
    file = speak(voice, " ".join(sentences), format, streamed=streamed)
    assert error_rate(sentences, file, format) <= UNDERSTOOD


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_streamed_and_whole_sound_have_equal_samples(voice: Server, format: SpeechFormat) -> None:
    """An MP3 stream cannot say where in its last frame the sound ends: less than a frame of silence follows there."""
    text = " ".join(SENTENCES[:3])
    whole, streamed = (played(speak(voice, text, format, streamed=streamed), format) for streamed in (False, True))
    assert np.array_equal(streamed[: len(whole)], whole)
    rest = streamed[len(whole) :]
    assert len(rest) < (576 if format == "mp3" else 1)
    assert np.abs(rest).max(initial=0) < 0.01


def test_first_sound_comes_before_the_text_ends(voice: Server) -> None:
    """The rest of the text is only sent when the first sentence is heard."""
    begin, rest = SENTENCES[0] + " " + SENTENCES[1][:20], SENTENCES[1][20:]
    with connect(f"ws://127.0.0.1:{voice.port}/v1/audio/speech/stream") as socket:

        def send(kind: str, **fields: Any) -> None:
            socket.send(json.dumps({"type": kind, **fields}))

        send("session.config", response_format="pcm", seed=1)
        send("input.text", text=begin)
        while not isinstance(first := socket.recv(timeout=20), bytes):
            pass
        send("input.text", text=rest)
        send("input.done")
        sound = first
        while not isinstance(message := socket.recv(timeout=20), str) or json.loads(message)["type"] != "session.done":
            sound += message if isinstance(message, bytes) else b""
    assert error_rate(SENTENCES[:2], sound, "pcm") <= UNDERSTOOD


# ------------------------------------------------------------------------------------------------ chats


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_recogniser_understands_chats(demo: Server, question: str) -> None:
    assert answer_error_rate(demo, question) <= UNDERSTOOD


def test_chats_are_heard_before_they_are_written(demo: Server) -> None:
    """The first sound is sent before the last word."""
    with openai.OpenAI(api_key="none", base_url=f"{demo.url}/v1", max_retries=0, timeout=60) as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Tell me three short facts about the sea."}],
            modalities=["text", "audio"],
            audio={"voice": "heart", "format": "pcm16"},
            temperature=0,
            max_completion_tokens=60,
            stream=True,
        )
        deltas: list[Any] = [choice["delta"] for chunk in stream for choice in chunk.model_dump()["choices"]]
    pieces = [(delta.get("audio") or {}).get("data") for delta in deltas]
    first_sound = next(place for place, piece in enumerate(pieces) if piece)
    last_word = max(place for place, delta in enumerate(deltas) if delta.get("content"))
    assert first_sound < last_word
    sound, _ = decode(b"".join(b64decode(piece) for piece in pieces if piece), "pcm")
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert word_error_rate(text, transcribe(sound, VOICE_RATE)) <= UNDERSTOOD
