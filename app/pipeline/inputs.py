"""What is appended to a running request, kept until its engine has used it: it may have to be appended once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

Input = tuple[bytes | memoryview, bool]
"""Data, and whether it is the last."""


class Inputs:
    """The inputs of one request, in order."""

    def __init__(self) -> None:
        self._kept: deque[Input] = deque()
        self._sent = 0
        self.used = 0

    def add(self, data: bytes | memoryview, last: bool) -> None:
        """One more; empty data only ends the input."""
        self._kept.append((data, last))

    def unsent(self) -> Iterator[Input]:
        """Those that the present replica has not been sent, which counts them as sent."""
        while self._sent < len(self._kept):
            self._sent += 1
            yield self._kept[self._sent - 1]

    def rewind(self) -> None:
        """Another replica has to be sent everything."""
        self._sent = 0

    def use(self, count: int) -> None:
        """The engine has used the first `count` in all."""
        for _ in range(count - self.used):
            self._kept.popleft()
            self._sent -= 1
        self.used = count
