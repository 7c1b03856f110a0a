"""Which words of an answer have been heard after so many milliseconds of its sound."""

from __future__ import annotations

from itertools import pairwise

from app.protocol.realtimeaudio import RATE


class Soundtrack:
    """Where in the sound of an answer its words are said, as far as the model tells."""

    def __init__(self) -> None:
        self._samples = 0
        self._spoken = ""
        self._marks: list[tuple[int, int]] = []

    def add(self, samples: int, text: str) -> None:
        """The next piece of sound, at the rate of app.protocol.realtimeaudio; `text` begins to be said with it."""
        if text:
            self._marks.append((self._samples, len(self._spoken)))
            self._spoken += text
        self._samples += samples

    @property
    def milliseconds(self) -> int:
        """How long it is, rounded up."""
        return -(-self._samples * 1000 // RATE)

    def heard(self, ms: int, transcript: str) -> str:
        """What of `transcript` has been said after `ms`: whole words, the last ones by their share of the time.

        A model that does not tell when it says what is taken to speak evenly.
        """
        position = ms * RATE // 1000
        if not self._samples:
            return ""
        if position >= self._samples:
            return transcript
        words = self._spoken or transcript
        marks = [*(self._marks or [(0, 0)]), (self._samples, len(words))]
        begin, end = next((here, there) for here, there in pairwise(marks) if here[0] <= position < there[0])
        share = (position - begin[0]) / (end[0] - begin[0])
        count = begin[1] + int(share * (end[1] - begin[1]))
        return words[:count] if words[count : count + 1].isspace() else _whole_words(words[:count])


def _whole_words(text: str) -> str:
    return text[: len(text) - len(text.split(" ")[-1])].rstrip()
