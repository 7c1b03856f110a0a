# ruff: noqa: RUF001 - quotation marks and CJK punctuation are what this module is about
"""Text that arrives in pieces, cut at the ends of its sentences. Nothing of it is lost or said twice."""

from __future__ import annotations

import re

from app.engines.speech.markdown import without_marks

_END = re.compile(r"[.!?…]+[\"'”’»)\]}*_]*(?=\s)|[。！？｡]+[」』”’）】》\"']*|\s*\n\s*")
"""What may end a sentence: its marks and what closes after them; in CJK without white space; a line break."""
_CLAUSE = re.compile(r"[,;:—–)\]]+\s|[，、；：]")
_SPACES = re.compile(r"\s*")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«*_]*$")

_TITLES = frozenset(
    {"mr", "mrs", "ms", "mx", "dr", "prof", "st", "mt", "gen", "sgt", "cpl", "capt", "cmdr", "lt", "col", "maj", "adm"}
    | {"rev", "hon", "pres", "gov", "sen", "messrs", "fig", "figs", "eq", "vol", "vols", "pp", "ca", "cf", "vs", "viz"}
    | {"approx", "resp", "e.g", "i.e", "hr", "fr", "z.b", "d.h", "bzw", "mme", "mlle"}
)
"""Words whose full stop ends no sentence, whatever follows."""
_NUMBERED = frozenset(
    {"no", "nos", "nr", "art", "sec", "ch", "p"}
    | {"jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"}
)
"""Words whose full stop ends no sentence where a number follows."""


class Splitter:
    """Cuts what is pushed. The sentences are the same however the text is divided into pieces.

    A sentence keeps the white space that follows it: all sentences joined are the text. One that has no end within
    `longest` characters is cut after a clause, else between words, else where it is.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = ""

    def push(self, text: str) -> list[str]:
        """More text; the sentences that are complete now."""
        self._rest += text
        return self._cut(final=False)

    def flush(self) -> list[str]:
        """There is no more text; the sentences that are left."""
        return self._cut(final=True)

    def _cut(self, *, final: bool) -> list[str]:
        sentences, start = [], 0
        while (length := self._length(start, final)) > 0:
            sentences.append(self._rest[start : start + length])
            start += length
        self._rest = self._rest[start:]
        return sentences

    def _length(self, start: int, final: bool) -> int:
        """Of the sentence that begins at `start`; 0 where more text is needed to say.

        It is judged by a window of bounded size, whose end counts as the end of the text once it is full.
        """
        window = self._rest[start : start + 2 * self._longest]
        complete = final or len(window) == 2 * self._longest
        for end in _END.finditer(window):
            if not window[: end.end()].strip():
                continue  # white space at the very beginning belongs to what follows it
            if end.end() == len(window) and not complete:
                return 0
            following = _SPACES.match(window, end.end()).end()  # type: ignore[union-attr]  # it always matches
            if following == len(window) and not complete:
                return 0
            if end.start() >= self._longest:
                break
            if following == len(window) or _ends(window, end, following):
                return following
        if len(window) > self._longest:
            return self._emergency(window)
        return len(window) if final else 0

    def _emergency(self, window: str) -> int:
        """Where to cut a sentence that is too long."""
        head = window[: self._longest]
        clauses = [match.end() for match in _CLAUSE.finditer(head)]
        if clauses and head[: clauses[-1]].strip():
            return clauses[-1]
        words = len(head.rstrip()) if head[-1].isspace() else max(head.rfind(" "), head.rfind("\n"), head.rfind("\t"))
        return words + 1 if 0 < words < self._longest and head[:words].strip() else self._longest


def _ends(window: str, end: re.Match[str], following: int) -> bool:
    """Whether the sentence ends there, by what stands before it and what follows at `following`."""
    marks, after = end.group(), window[following]
    if marks.isspace():  # a line break: an empty line, or one after which nothing goes on
        return marks.count("\n") > 1 or not after.islower()
    if marks[0] in "。！？｡":
        return True
    if after.islower() and "\n" not in window[end.end() : following]:
        return False
    if not marks.startswith(".") or marks.startswith(".."):
        return True
    return not _is_abbreviation(window[: end.start()], after)


def _is_abbreviation(before: str, after: str) -> bool:
    """Whether the full stop behind `before` belongs to its last word."""
    word = _LAST_WORD.search(before).group()  # type: ignore[union-attr]  # it always matches
    lower = word.lower()
    if lower in _TITLES or (len(word) == 1 and word.isupper() and word != "I"):
        return True
    if lower in _NUMBERED:
        return after.isdigit()
    return word.isdigit() and not before[: -len(word)].strip()  # the number of an item in a list


def spoken(sentence: str) -> str:
    """The sentence as a model reads it: without Markdown, single white space, none at its ends; "" for no word."""
    words = without_marks(sentence)
    return " ".join(words.split()) if any(char.isalnum() for char in words) else ""
