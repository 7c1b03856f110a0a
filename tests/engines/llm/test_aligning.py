"""A tiny forced aligner on a real engine: the times are transformers', and what cannot be aligned is refused."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from app.cluster import messages as m
from app.engines.base import EngineError
from app.engines.llm.engine import LlmEngine
from app.protocol.aligning import AlignTask, Word, decode_alignment, encode_task
from app.settings.schema import MediaConfig
from tests.engines.llm.recorder import Recorder
from tests.recordings import RATE, as_file, as_wav, chirp
from tests.tiny_aligner import aligner_stage, reference_times

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "Hello, brave new world: it's   me! (No 42)"
WORDS = ["Hello", "brave", "new", "world", "it's", "me", "No", "42"]
SOUND = as_wav(chirp(3.2))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aligner() -> AsyncIterator[LlmEngine]:
    engine = LlmEngine(aligner_stage(), ["aligner"], MediaConfig(max_seconds=60))
    capabilities = await engine.start()
    assert "align" in capabilities.tasks
    assert capabilities.output_modalities == []
    yield engine
    await engine.stop()


async def aligned(engine: LlmEngine, text: str, file: bytes, **more: Any) -> list[Word]:
    request = Recorder("align", encode_task(AlignTask(text=text, file=file, **more)))
    await engine.run(request)
    assert request.events[0] == m.Accepted()
    assert request.events[-1] == m.Done()
    (document,) = (event for event in request.events if isinstance(event, m.Document))
    return decode_alignment(document.body).words


async def test_times_are_transformers_and_do_not_run_backwards(aligner: LlmEngine) -> None:
    other = as_wav(chirp(2.6, 900, 4000))
    texts = [
        (TEXT, SOUND),
        ("one two", other),
        ("Grüße aus 北京", SOUND),
        (TEXT, as_file(chirp(2.0), "mp3", "libmp3lame")),
    ]
    found = await asyncio.gather(*(aligned(aligner, text, file) for text, file in texts))
    assert [word.word for word in found[0]] == WORDS
    assert [word.word for word in found[2]] == ["Grüße", "aus", "北", "京"]
    assert len({word.start for words in found for word in words}) > 3, "a model of one opinion is equal by luck"
    for words, (text, file) in zip(found, texts, strict=True):
        assert words == reference_times(text, file)
        times = [time for word in words for time in (word.start, word.end)]
        assert times == sorted(times)


async def test_bare_samples_and_base64_are_the_same_sound(aligner: LlmEngine) -> None:
    whole = await aligned(aligner, TEXT, SOUND)
    assert await aligned(aligner, TEXT, SOUND[44:], sample_rate=RATE) == whole
    assert await aligned(aligner, TEXT, b64encode(SOUND), base64=True) == whole


async def test_no_words_have_no_times(aligner: LlmEngine) -> None:
    assert await aligned(aligner, "... !", SOUND) == []


async def test_times_end_with_the_sound(aligner: LlmEngine) -> None:
    words = await aligned(aligner, TEXT, as_wav(chirp(0.1)))
    assert len(words) == len(WORDS)
    assert max(word.end for word in words) <= 0.1


@pytest.mark.parametrize(
    ("task", "param", "told"),
    [
        ({"language": "sv"}, "language", "the forced aligner does not know sv; it knows Cantonese, Chinese, English"),
        ({"language": "Klingon"}, "language", "the forced aligner does not know Klingon"),
        ({"file": b"no sound"}, "sound", "cannot be decoded"),
        ({"text": "word " * 400}, "input", "sound and text together are too long to be aligned"),
    ],
)
async def test_what_cannot_be_aligned_is_refused(
    aligner: LlmEngine, task: dict[str, Any], param: str, told: str
) -> None:
    asked = {"text": TEXT, "file": SOUND, "sound_field": "sound"} | task
    request = Recorder("align", encode_task(AlignTask(**asked)))
    with pytest.raises(EngineError) as caught:
        await aligner.run(request)
    failed = caught.value.failed
    assert (failed.status, failed.param) == (400, param)
    assert told in failed.message


async def test_known_languages_are_taken_by_name_and_by_code(aligner: LlmEngine) -> None:
    plain = await aligned(aligner, TEXT, SOUND)
    for language in ("en", "English", "Auto", "de"):
        assert await aligned(aligner, TEXT, SOUND, language=language) == plain


async def test_an_aligner_answers_nothing_else(aligner: LlmEngine) -> None:
    with pytest.raises(EngineError, match="does not serve 'chat'"):
        await aligner.run(Recorder("chat", b"{}"))
