"""The marks of Markdown are not read aloud."""

from __future__ import annotations

import pytest

from app.engines.speech.markdown import without_marks


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("This is **very** _important_, ~~not~~ `code`.", "This is very important, not code."),
        ("***Really?*** Yes.", "Really? Yes."),
        ("## A heading\n- one\n* two\n+ three\n> said", "A heading\none\ntwo\nthree\nsaid"),
        ("```python\nprint(1)\n```\n", "print(1)\n"),
        ("See [the **page**](https://example.org/a_b) ![picture](x.png).", "See the page picture."),
        ("---\n*** End", "End"),
        ("(**bold**), “*so*”", "(bold), “so”"),
    ],
)
def test_marks_go_and_words_stay(written: str, said: str) -> None:
    assert without_marks(written) == said


@pytest.mark.parametrize(
    "text",
    [
        "2*3 is 2 * 3.",
        "snake_case and __ alone",
        "[S1] Hi. [laughs]",
        "C# is #1",
        "a-b - c",
        "~5 %",
        "5 > 3",
        "f(x)[1](y z)",
    ],
)
def test_what_may_be_no_mark_stays(text: str) -> None:
    assert without_marks(text) == text
