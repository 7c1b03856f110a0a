"""How often a new process took the place of a replica, wherever it is supervised."""

from __future__ import annotations


class Restarts:
    """Counts per (stage id, replica id) for as long as the master lives, also while a replica is down."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[tuple[str, int], int]] = {}

    def register(self, key: tuple[int, int], address: str, pid: int) -> None:
        """A replica registers; the same process may do so again."""
        process, count = self._known.get(key, ((address, pid), 0))
        self._known[key] = (address, pid), count + (process != (address, pid))

    def rows(self) -> list[tuple[int, int, int]]:
        """(stage id, replica id, restarts) of every replica that was ever seen."""
        return [(stage, replica, count) for (stage, replica), (_, count) in self._known.items()]
