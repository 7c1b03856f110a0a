"""What has been heard of an answer after a part of its sound."""

from __future__ import annotations

import pytest

from app.realtime.soundtrack import Soundtrack

WORDS = "One two. Three four."


def track(*pieces: tuple[int, str]) -> Soundtrack:
    made = Soundtrack()
    for seconds, text in pieces:
        made.add(seconds * 24_000, text)
    return made


@pytest.mark.parametrize(
    ("ms", "heard"),
    [
        (0, ""),
        (300, ""),
        (700, "One"),
        (1000, "One two."),
        (1600, "One two. Three"),
        (1999, "One two. Three"),
        (2000, WORDS),
        (9000, WORDS),
    ],
)
def test_a_model_that_tells_its_sentences(ms: int, heard: str) -> None:
    assert track((1, "One two. "), (1, "Three four.")).heard(ms, WORDS) == heard


@pytest.mark.parametrize(("ms", "heard"), [(0, ""), (1000, "One two."), (1500, "One two. Three"), (2000, WORDS)])
def test_a_model_that_only_sounds(ms: int, heard: str) -> None:
    assert track((1, ""), (1, "")).heard(ms, WORDS) == heard


def test_sentences_of_several_pieces() -> None:
    made = track((1, "One two. "), (1, ""), (1, "Three "), (1, "four."))
    assert made.heard(1900, WORDS) == "One two."
    assert made.heard(3500, WORDS) == "One two. Three"
    assert made.milliseconds == 4000


def test_nothing_has_been_heard() -> None:
    assert track().heard(0, WORDS) == ""
    assert track((1, "")).heard(500, "") == ""
