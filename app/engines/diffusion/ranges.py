"""Lists of numbers as people write them: 0-9,20."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+)(?:-(\d+))?")


def read_ranges(text: str) -> frozenset[int]:
    """The numbers of such as "0-9,20", both ends included; of "" none.

    Raises:
        ValueError: it is no such list; the message does not say whose.
    """
    numbers: set[int] = set()
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        found = _PART.fullmatch(part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"expected numbers and ranges such as 0-9,20; got {text!r}")
        numbers |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(numbers)
