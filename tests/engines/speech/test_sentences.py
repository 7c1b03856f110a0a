# ruff: noqa: RUF001 - quotation marks and CJK punctuation are what this is about
"""Sentences are cut where they end, and nothing is lost or doubled, however the text comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engines.speech.sentences import Splitter, spoken

CASES = {
    "plain": ["One is here. ", "Two is there! ", "Is three?"],
    "titles": ["Dr. Smith met Mrs. Jones, i.e. Anna. ", "They left."],
    "initials": ["J. K. Rowling wrote it. ", "I did not."],
    "numbers": ["It costs $3.14 or 1.000,50 in all. ", "See No. 5 on Jan. 3. ", "No. ", "Never."],
    "times": ["At 5 p.m. we left. ", "At 6 a.m. we were back."],
    "list": ["1. Apples\n", "2. Pears\n\n", "3. Plums"],
    "ellipses": ["Well... maybe. ", "Or… not. ", "Wait… ", "What?"],
    "quotes": ['"Stop!" he said. ', "“Why?” ", "She left (alone). ", "Then *he.* ", "End"],
    "marks": ["What?! ", "Really?? ", "Yes!!!"],
    "cjk": ["你好。", "今天天气很好！", "「真的？」", "他说，是的。", "好"],
    "lines": ["A heading\n", "A wrapped line\nthat goes on. ", "End"],
    "paragraphs": ["no full stop\n\n", "lower case again"],
    "addresses": ["Go to www.example.org/a.html or mail a.b@c.de now. ", "Done."],
}


def cut(text: str, longest: int = 400, pieces: list[int] | None = None) -> list[str]:
    """The sentences of a text that comes in pieces, cut at these places."""
    places = sorted({place for place in pieces or [] if place < len(text)})
    splitter, sentences = Splitter(longest), []
    for start, end in zip([0, *places], [*places, len(text)], strict=True):
        sentences += splitter.push(text[start:end])
    return sentences + splitter.flush()


@pytest.mark.parametrize("case", CASES)
def test_sentences_end_where_a_reader_would_pause(case: str) -> None:
    assert cut("".join(CASES[case])) == CASES[case]


@pytest.mark.parametrize("case", CASES)
def test_letter_by_letter_they_are_the_same(case: str) -> None:
    text = "".join(CASES[case])
    assert cut(text, pieces=list(range(1, len(text)))) == cut(text)


def test_a_sentence_is_complete_as_soon_as_the_next_one_begins() -> None:
    splitter = Splitter(400)
    assert splitter.push("It is 5 p.") == []
    assert splitter.push("m. now. ") == []  # it could still go on: "now. and"
    assert splitter.push("T") == ["It is 5 p.m. now. "]
    assert splitter.push("he end") == []
    assert splitter.flush() == ["The end"]
    assert splitter.flush() == []


def test_what_never_ends_is_cut_after_a_clause_else_between_words_else_anywhere() -> None:
    assert cut("one two, three four five", 12) == ["one two, ", "three four ", "five"]
    assert cut("a" * 25, 10) == ["a" * 10, "a" * 10, "a" * 5]
    assert cut("ab, " * 3, 8) == ["ab, ab, ", "ab, "]
    assert cut("，".join(["你好"] * 6), 9) == ["你好，你好，你好，", "你好，你好，你好"]


TEXTS = st.text(st.sampled_from(list("abzA1I .,!?\n \t\"'。，…()")), max_size=150) | st.text(max_size=60)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(st.integers(1, 150), max_size=40), st.integers(1, 40))
def test_no_character_is_lost_or_said_twice_and_pieces_change_nothing(text: str, pieces: list[int], cap: int) -> None:
    sentences = cut(text, cap)
    assert "".join(sentences) == text
    assert all(0 < len(sentence) <= 2 * cap for sentence in sentences)
    assert cut(text, cap, pieces) == sentences


def test_what_is_spoken_of_a_sentence() -> None:
    assert spoken("  Two\n lines.\t") == "Two lines."
    assert spoken("42") == "42"
    assert spoken("好") == "好"
    assert [spoken(nothing) for nothing in ("", " \n", "...", "— * —", "😀")] == [""] * 5
