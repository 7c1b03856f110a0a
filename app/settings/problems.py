"""How configuration mistakes are told: all of them at once, each with its place and a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """The configuration cannot be used. `problems` holds one readable sentence for each mistake found."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that ends a sentence, such as `; did you mean 'X'?`, or nothing if no known word is close."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def near(word: str, known: Iterable[str], prefix: str = "") -> str:
    """A hint such as ` (did you mean X?)`, or nothing if no known word is close. A `prefix` of all is not compared."""
    rests = [name.removeprefix(prefix) for name in known]
    close = difflib.get_close_matches(word.removeprefix(prefix), rests, n=1, cutoff=0.6)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
