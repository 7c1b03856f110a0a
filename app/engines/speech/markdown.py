"""What is said of Markdown, in which language models write: its words, and none of its marks."""

from __future__ import annotations

import re

_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
_LINE = re.compile(r"^\s*(?:#{1,6}|[-+>]|[*_]+|-{3,}|`{3,}\w*)(?:\s+|$)", re.MULTILINE)
_OPENING = re.compile(r"(?<!\w)(?:[*_]{1,3}|~~|`{1,3})(?=[^\W_]|[\"'“‘(\[])")  # noqa: RUF001 - quotation marks
_CLOSING = re.compile(r"(?<=[^\W_]|[\"'”’)\].,;:!?…%])(?:[*_]{1,3}|~~|`{1,3})(?!\w)")  # noqa: RUF001 - quotation marks


def without_marks(text: str) -> str:
    """The text without the marks of headings, lists, quotations, emphasis, code and links.

    What may be none stays: products (2*3, 2 * 3), names (snake_case), tags ([S1]).
    """
    for mark in (_LINE, _OPENING, _CLOSING):
        text = mark.sub("", text)
    return _LINK.sub(r"\1", text)
