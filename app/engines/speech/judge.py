"""From a speech task to the manner in which it is spoken. What the model has not is refused, with what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.engines.refusal import refuse
from app.engines.speech.family import Manner
from app.engines.speech.sampling import sampling_of
from app.engines.speech.sentences import spoken
from app.media.soundfile import RATES
from app.protocol.speechtask import SpeechCard, SpeechTask, VoiceSample
from app.settings.problems import did_you_mean

_SHOWN = 24
"""Names in a message; models have up to hundreds of voices and languages."""
_LARGEST = 3.4028234e38
"""Of 32 bits."""


def with_default_voice(card: SpeechCard, voice: str) -> SpeechCard:
    """The card of a stage that is configured so; "": the model's own default holds.

    Raises:
        ValueError: the model has no such voice.
    """
    if not voice:
        return card
    if voice not in card.voices:
        hint = did_you_mean(voice, card.voices)
        raise ValueError(f"default_voice: the model has no voice {voice!r}{hint}")
    return msgspec.structs.replace(card, default_voice=voice)


def judge(task: SpeechTask, card: SpeechCard, sampling: type[msgspec.Struct], defaults: Mapping[str, Any]) -> Manner:
    """How the task is to be spoken; the reference of one that carries a voice is still to be read.

    `sampling` is the class of the family's sampling parameters, `defaults` the stage's values of them.

    Raises:
        EngineError: 400; `param` is the field, and the message says what is possible.
    """
    if not task.appended and not spoken(task.text):
        refuse("there is nothing in the input that could be said: no letter and no digit", "input")
    return manner_of(task, card, sampling, defaults)


def manner_of(
    task: SpeechTask, card: SpeechCard, sampling: type[msgspec.Struct], defaults: Mapping[str, Any]
) -> Manner:
    """As `judge`, whatever there is to be said.

    Raises:
        EngineError: 400.
    """
    if task.instructions and not card.instructions:
        refuse(f"{card.family} models take no instructions", "instructions")
    _check_language(task.language, card)
    _check_rate(task)
    if task.sample:
        check_sample(task.sample, card)
    return Manner(
        voice="" if task.sample else _voice(task.voice, card),
        speed=_speed(task.speed, card),
        reference=None,
        sampling=sampling_of(sampling, defaults, task.extra, card.family),
    )


def check_sample(sample: VoiceSample, card: SpeechCard) -> None:
    """Whether the model can imitate a voice that is given so; the recording itself is not looked at.

    Raises:
        EngineError: 400, with the ways that it has.
    """
    if sample.embedding:
        _check_embedding(sample, card)
    elif "audio" not in card.cloning and "transcribed" not in card.cloning:
        has = "; it takes the embedding of a speaker" if card.cloning else f"; it has the voices {_listed(card.voices)}"
        refuse(f"{card.family} models cannot imitate a recording{has}", sample.param)
    elif "audio" not in card.cloning and not sample.text.strip():
        refuse(f"{card.family} models need the transcript of the recording too", "ref_text")


def _check_embedding(sample: VoiceSample, card: SpeechCard) -> None:
    if "embedding" not in card.cloning:
        has = "; they imitate a recording" if card.cloning else f"; this one has the voices {_listed(card.voices)}"
        refuse(f"{card.family} models take no speaker embedding{has}", sample.param)
    if len(sample.embedding) != card.embedding_size:
        refuse(f"the embedding must have {card.embedding_size} numbers; it has {len(sample.embedding)}", sample.param)
    if not all(abs(number) <= _LARGEST for number in sample.embedding):  # false for what is no number, too
        refuse("the embedding holds a number that is not finite in 32 bits", sample.param)


def _voice(name: str, card: SpeechCard) -> str:
    if name in card.voices:
        return name  # also where another one differs in case only
    if name.casefold() in ("", "default"):
        if not card.default_voice:
            refuse(f"this model has no voice of its own: give one to imitate ({' or '.join(card.cloning)})", "voice")
        return card.default_voice
    found = next((voice for voice in card.voices if voice.casefold() == name.casefold()), None)
    if found is None:
        hint = did_you_mean(name, card.voices) or f"; there is {_listed(card.voices)}"
        refuse(f"this model has no voice {name!r}{hint}", "voice")
    return found


def _speed(speed: float, card: SpeechCard) -> float:
    if not card.speeds and speed != 1:
        refuse(f"{card.family} models speak at one speed; speed must be 1", "speed")
    if card.speeds and not card.speeds[0] <= speed <= card.speeds[1]:
        refuse(f"this model speaks at speeds from {card.speeds[0]:g} to {card.speeds[1]:g}; got {speed:g}", "speed")
    return speed


def _check_language(language: str, card: SpeechCard) -> None:
    """ "auto" leaves it to the model, as none does."""
    if language.casefold() in ("", "auto", *(known.casefold() for known in card.languages)):
        return
    if not card.languages:
        refuse(f"{card.family} models have no choice of language: the text or the voice decides", "language")
    hint = did_you_mean(language, card.languages) or f"; it speaks {_listed(card.languages)}"
    refuse(f"this model does not speak {language!r}{hint}", "language")


def _check_rate(task: SpeechTask) -> None:
    rates = RATES[task.format]
    if task.sample_rate and rates and task.sample_rate not in rates:
        refuse(f"{task.format} has the sample rates {_listed([str(rate) for rate in rates])}", "sample_rate")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
