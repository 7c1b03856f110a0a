"""Recordings on a real engine with a tiny Whisper: the text is transformers', and what cannot be is refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.llm.engine import LlmEngine
from app.engines.llm.hearing import Transcribing
from app.media.recording import read_recording
from app.protocol.listening import ListeningTask
from app.settings.schema import MediaConfig, StageConfig
from tests.engines.llm.recorder import Recorder, until
from tests.recordings import RATE, as_file, as_wav, chirp, silent_film
from tests.tiny_listening import CLIP_S, tiny_whisper

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHORT = as_wav(chirp(1.5))
OTHER = as_wav(chirp(CLIP_S, 3000, 300))
LONG = as_wav(chirp(4.5))
ENGLISH = {"language": "en"}
TIME = re.compile(r"<\|\d\.\d\d\|>")
"""transformers leaves these out of a text; a real Whisper writes none unless it is asked for times."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def listener() -> AsyncIterator[LlmEngine]:
    arguments = {"dtype": "float32", "max_num_seqs": 16, "max_num_batched_tokens": 2048}
    stage = StageConfig(stage_id=0, name="llm", kind="llm", model=str(tiny_whisper()), engine_args=arguments)
    engine = LlmEngine(stage, ["listener"], MediaConfig(max_seconds=10))
    capabilities = await engine.start()
    assert {"transcription", "translation"} <= set(capabilities.tasks)
    assert not {"chat", "completion"} & set(capabilities.tasks)
    assert (capabilities.input_modalities, capabilities.output_modalities) == (["text", "audio"], ["text"])
    yield engine
    await engine.stop()


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


class Reference:
    """The same model in transformers, in float32."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.tokenizer = AutoTokenizer.from_pretrained(tiny_whisper())
        self._features = WhisperFeatureExtractor.from_pretrained(tiny_whisper())
        self._model = WhisperForConditionalGeneration.from_pretrained(tiny_whisper()).eval()

    def tokens(self, file: bytes, prompt: str, steps: int) -> list[int]:
        """The likeliest continuation of `prompt`."""
        import torch

        samples = read_recording(file, rate=RATE, limits=MediaConfig(), seconds=(0, 30))
        features = self._features(samples, sampling_rate=RATE, return_tensors="pt").input_features
        tokens = self.tokenizer.encode(prompt, add_special_tokens=False)
        before = len(tokens)
        with torch.inference_mode():
            heard = self._model.model.encoder(features)
            for _ in range(steps):
                logits = self._model(encoder_outputs=heard, decoder_input_ids=torch.tensor([tokens])).logits
                tokens.append(int(logits[0, -1].argmax()))
        return tokens[before:]

    def text(self, file: bytes, task: str, steps: int) -> str:
        tokens = self.tokens(file, f"<|startoftranscript|><|en|><|{task}|><|notimestamps|>", steps)
        text: str = self.tokenizer.decode(tokens)
        return text


def asked(
    file: bytes, kind: str = "transcription", *, stream: bool = False, answer: Any = "json", **fields: str
) -> Recorder:
    task = ListeningTask(fields=fields, answer=answer, stream=stream, file=file)
    return Recorder(kind, msgspec.msgpack.encode(task))


async def heard(engine: LlmEngine, file: bytes, kind: str = "transcription", **fields: Any) -> list[m.AnyEvent]:
    """The events of a request that works."""
    request = asked(file, kind, **fields)
    async with asyncio.timeout(60):
        await engine.run(request)
    assert [event for event in request.events if isinstance(event, m.Accepted)] == [request.events[0]]
    assert request.events[-1] == m.Done()
    return request.events


def document(events: list[m.AnyEvent]) -> Any:
    (found,) = [json.loads(event.body) for event in events if isinstance(event, m.Document)]
    return found


def usage(events: list[m.AnyEvent]) -> m.Usage:
    return [event for event in events if isinstance(event, m.Usage)][-1]


@pytest.mark.parametrize("file", [SHORT, OTHER], ids=["short", "other"])
@pytest.mark.parametrize(("kind", "task"), [("transcription", "transcribe"), ("translation", "translate")])
async def test_the_text_is_that_of_transformers(
    listener: LlmEngine, reference: Reference, file: bytes, kind: str, task: str
) -> None:
    events = await heard(listener, file, kind, **ENGLISH, max_completion_tokens="40")
    answer = document(events)
    assert TIME.sub("", answer["text"]) == reference.text(file, task, 40)
    if kind == "transcription":
        assert answer["usage"] == {"type": "duration", "seconds": 2}
    counts = usage(events)
    assert (counts.prompt_tokens, counts.completion_tokens) == (4 + 50 * CLIP_S, 40)
    assert json.loads(counts.details) == {"input_token_details": {"text_tokens": 4, "audio_tokens": 50 * CLIP_S}}


async def test_a_language_that_is_not_told_is_found_out(listener: LlmEngine, reference: Reference) -> None:
    answer = document(await heard(listener, SHORT, answer="verbose_json", max_completion_tokens="8"))
    assert f"<|{answer['language']}|>" in reference.tokenizer.get_vocab()
    told = {"language": answer["language"], "max_completion_tokens": "8"}
    assert document(await heard(listener, SHORT, answer="verbose_json", **told)) == answer


async def test_segments_are_told_with_their_times(listener: LlmEngine, reference: Reference) -> None:
    fields = ENGLISH | {"max_completion_tokens": "80"}
    answer = document(await heard(listener, OTHER, answer="verbose_json", **fields))
    tokens = reference.tokens(OTHER, "<|startoftranscript|><|en|><|transcribe|><|0.00|>", 80)
    zero = reference.tokenizer.convert_tokens_to_ids("<|0.00|>")
    told = [token for segment in answer["segments"] for token in segment["tokens"]]
    assert told, "the tiny model is to say something between two times"
    assert told == [token for token in tokens if token < zero][: len(told)]
    assert answer["duration"] == CLIP_S
    for segment in answer["segments"]:
        assert segment["start"] % 0.5 == segment["end"] % 0.5 == 0


async def test_nothing_said_is_no_segment(listener: LlmEngine) -> None:
    assert listener._service is not None
    serving = listener._service._listening._kinds["transcription"].serve.__self__  # type: ignore[attr-defined]
    assert isinstance(serving, Transcribing)
    assert serving._get_verbose_segments((serving.tokenizer.eos_token_id,), [], None, None) == []


async def test_beams(listener: LlmEngine) -> None:
    fields = ENGLISH | {"use_beam_search": "true", "n": "2", "max_completion_tokens": "16"}
    events = await heard(listener, OTHER, **fields)
    assert document(events)["text"]
    assert usage(events).completion_tokens >= 16


@pytest.mark.parametrize("file", [SHORT, LONG], ids=["one clip", "several"])
async def test_a_stream_says_the_same(listener: LlmEngine, file: bytes) -> None:
    fields = ENGLISH | {"max_completion_tokens": "20"}
    whole, pieces = await heard(listener, file, **fields), await heard(listener, file, stream=True, **fields)
    deltas = [event for event in pieces if isinstance(event, m.Delta)]
    assert "".join(delta.text for delta in deltas) == document(whole)["text"]
    assert len(deltas) > 5
    assert usage(pieces) == usage(whole)
    assert sum(delta.tokens for delta in deltas) == usage(pieces).completion_tokens


async def test_a_long_recording_is_heard_clip_by_clip(listener: LlmEngine) -> None:
    events = await heard(listener, LONG, **ENGLISH, max_completion_tokens="10")
    assert usage(events).completion_tokens >= 30
    assert document(events)["text"].count(" ") == usage(events).completion_tokens / 10 - 1
    assert document(events)["usage"]["seconds"] == 5


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp3", "libmp3lame"),
        ("ogg", "libopus"),
        ("flac", "flac"),
        ("webm", "libopus"),
        ("mp4", "aac"),
        ("asf", "wmav2"),
    ],
)
async def test_usual_containers_are_read(listener: LlmEngine, container: str, codec: str) -> None:
    rate = 48_000 if codec == "libopus" else RATE
    file = as_file(chirp(1.5, rate=rate), container, codec, rate)
    answer = document(await heard(listener, file, **ENGLISH, max_completion_tokens="2"))
    assert answer["usage"]["seconds"] == 2
    assert answer["text"]


NOISE = np.random.default_rng(0).bytes(5000)
REFUSED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "no audio": (NOISE, {}, "file"),
    "text": (b"WEBVTT and nothing else", {}, "file"),
    "cut off": (as_file(chirp(1.5), "mp4", "aac")[:700], {}, "file"),
    "a film without sound": (silent_film(), {}, "file"),
    "too long": (as_wav(chirp(10.5)), {}, "file"),
    "too short": (as_wav(chirp(0.05)), {}, "file"),
    "no samples": (as_wav(chirp(0)), {}, "file"),
    "language": (SHORT, {"language": "klingon"}, "language"),
    "to_language": (SHORT, {"to_language": "fr"}, "to_language"),
    "hotwords": (SHORT, {"hotwords": "Ångström"}, "hotwords"),
    "speakers": (SHORT, {"answer": "diarized_json"}, "response_format"),
    "temperature": (SHORT, {"temperature": "-1"}, "temperature"),
    "words for a number": (SHORT, {"temperature": "warm"}, "temperature"),
    "not a number": (SHORT, {"temperature": "nan"}, "temperature"),
    "infinite": (SHORT, {"top_p": "inf"}, "top_p"),
    "tokens": (SHORT, {"max_completion_tokens": "0"}, "max_completion_tokens"),
    "beams": (SHORT, {"n": "2"}, "n"),
    "beams in a stream": (SHORT, {"use_beam_search": "true", "stream": True}, "use_beam_search"),
    "usage without a stream": (SHORT, {"stream_include_usage": "true"}, "stream_include_usage"),
    "usage all the time": (
        SHORT,
        {"stream_continuous_usage_stats": "true", "stream": True},
        "stream_continuous_usage_stats",
    ),
    "unknown": (SHORT, {"langauge": "en"}, "langauge"),
    "objects": (SHORT, {"vllm_xargs": "{"}, "vllm_xargs"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_is_refused(listener: LlmEngine, name: str) -> None:
    file, fields, param = REFUSED[name]
    request = asked(file, **ENGLISH | fields)
    with pytest.raises(EngineError) as caught:
        await listener.run(request)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param), caught.value.failed
    assert request.events == []


async def test_whoever_leaves_takes_the_work_away(listener: LlmEngine) -> None:
    request = asked(LONG, stream=True, **ENGLISH)
    request.funded.clear()
    task = asyncio.create_task(listener.run(request))
    await until(lambda: m.Accepted() in request.events)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    await until(lambda: listener.load().running + listener.load().waiting == 0)
