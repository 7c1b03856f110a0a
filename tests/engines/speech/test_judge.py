"""What a model has not is refused, and what it has is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.engines.base import EngineError
from app.engines.speech.family import Manner
from app.engines.speech.judge import check_sample, judge
from app.protocol.speechtask import SpeechCard, VoiceSample
from tests.engines.speech.asking import task


class Sampling(msgspec.Struct, frozen=True):
    temperature: float | None = None


CARD = SpeechCard(
    family="tiny",
    voices=["Anna", "anna", "Bertrand"],
    default_voice="anna",
    sample_rate=16_000,
    speeds=[0.5, 2.0],
    languages=["en", "German"],
)
PLAIN = SpeechCard(family="plain", voices=["x"], default_voice="x", sample_rate=16_000)


def judged(card: SpeechCard = CARD, **fields: Any) -> Manner:
    return judge(task(**fields), card, Sampling, {"temperature": 0.5})


@pytest.mark.parametrize(
    ("card", "fields", "param", "says"),
    [
        (CARD, {"text": ""}, "input", "nothing in the input that could be said"),
        (CARD, {"text": " ...!? "}, "input", "nothing in the input"),
        (CARD, {"voice": "Bertran"}, "voice", "no voice 'Bertran'; did you mean 'Bertrand'?"),
        (CARD, {"voice": "zoe"}, "voice", "no voice 'zoe'; there is Anna, anna, Bertrand"),
        (CARD, {"speed": 0.4}, "speed", "from 0.5 to 2; got 0.4"),
        (CARD, {"speed": 2.1}, "speed", "from 0.5 to 2; got 2.1"),
        (PLAIN, {"speed": 1.5}, "speed", "plain models speak at one speed"),
        (CARD, {"instructions": "whisper"}, "instructions", "tiny models take no instructions"),
        (CARD, {"language": "Germn"}, "language", "did you mean 'German'?"),
        (PLAIN, {"language": "en"}, "language", "no choice of language"),
        (CARD, {"format": "opus", "sample_rate": 44_100}, "sample_rate", "8000, 12000, 16000, 24000, 48000"),
        (CARD, {"extra": {"temprature": 1.0}}, "temprature", "did you mean 'temperature'?"),
        (CARD, {"extra": {"temperature": "hot"}}, "temperature", "got 'hot'"),
        (SpeechCard(family="clone", voices=[], default_voice="", sample_rate=1, cloning=["embedding"]), {}, "voice",
         "no voice of its own: give one to imitate (embedding)"),
    ],
)  # fmt: skip
def test_refusals(card: SpeechCard, fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(EngineError) as caught:
        judged(card, **fields)
    failed = caught.value.failed
    assert (failed.status, failed.param, failed.type) == (400, param, "invalid_request_error")
    assert says in failed.message


def test_what_is_not_said_is_the_models_own() -> None:
    manner = judged()
    assert (manner.voice, manner.speed, manner.reference) == ("anna", 1.0, None)
    assert manner.sampling.temperature == 0.5
    assert judged(voice="Default").voice == "anna"
    assert judged(extra={"temperature": 0.75}).sampling.temperature == 0.75


@pytest.mark.parametrize(("asked", "voice"), [("Anna", "Anna"), ("anna", "anna"), ("BERTRAND", "Bertrand")])
def test_the_case_of_a_voice_matters_only_where_two_differ_by_it(asked: str, voice: str) -> None:
    assert judged(voice=asked).voice == voice


def test_languages_are_known_by_any_case_and_auto_leaves_it_to_the_model() -> None:
    for language in ("EN", "german", "auto", "Auto", ""):
        assert judged(language=language).voice == "anna"
    assert judged(PLAIN, language="auto").voice == "x"


def test_a_text_that_is_appended_may_be_empty() -> None:
    assert judged(text="", appended=True).voice == "anna"


def test_beside_a_voice_to_imitate_the_name_is_only_a_label() -> None:
    card = msgspec.structs.replace(CARD, cloning=["embedding"], embedding_size=2)
    assert judged(card, voice="whoever", sample=VoiceSample(embedding=[1.0, 2.0])).voice == ""
    with pytest.raises(EngineError, match="must have 2 numbers"):
        judged(card, sample=VoiceSample(embedding=[1.0]))


RECORDING = VoiceSample(data=b"RIFF")
TRANSCRIBED = VoiceSample(data=b"RIFF", text="what is said in it")


def numbers(*values: float) -> VoiceSample:
    return VoiceSample(embedding=list(values), param="speaker_embedding")


@pytest.mark.parametrize(
    ("cloning", "sample", "param", "says"),
    [
        ([], RECORDING, "ref_audio", "cannot imitate a recording; it has the voices a"),
        (["embedding"], RECORDING, "ref_audio", "it takes the embedding of a speaker"),
        (["transcribed"], RECORDING, "ref_text", "need the transcript of the recording too"),
        ([], numbers(1, 2), "speaker_embedding", "take no speaker embedding; this one has the voices a"),
        (["audio"], numbers(1, 2), "speaker_embedding", "they imitate a recording"),
        (["embedding"], numbers(1, 2, 3), "speaker_embedding", "must have 2 numbers; it has 3"),
        (["embedding"], numbers(1, float("nan")), "speaker_embedding", "not finite"),
        (["embedding"], numbers(1, 1e300), "speaker_embedding", "not finite"),
    ],
)
def test_a_voice_that_cannot_be_imitated(cloning: Any, sample: VoiceSample, param: str, says: str) -> None:
    card = SpeechCard(family="x", voices=["a"], default_voice="a", sample_rate=1, cloning=cloning, embedding_size=2)
    with pytest.raises(EngineError) as caught:
        check_sample(sample, card)
    assert (caught.value.failed.status, caught.value.failed.param) == (400, param)
    assert says in caught.value.failed.message


@pytest.mark.parametrize(
    ("cloning", "sample"),
    [(["audio"], RECORDING), (["audio"], TRANSCRIBED), (["transcribed"], TRANSCRIBED), (["embedding"], numbers(1, 2))],
)
def test_a_voice_that_can_be_imitated(cloning: Any, sample: VoiceSample) -> None:
    check_sample(
        sample,
        SpeechCard(family="x", voices=[], default_voice="", sample_rate=1, cloning=cloning, embedding_size=2),
    )
