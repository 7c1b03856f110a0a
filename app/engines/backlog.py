"""Events that a client without credit cannot be sent yet: as few of them as possible, nothing lost."""

from __future__ import annotations

from app.cluster import messages as m


class Backlog:
    """Held events in order. The text of a choice grows together, and of several token counts the last one stays."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._events: list[m.AnyEvent] = []
        self._growing: dict[int, int] = {}  # choice -> position of its Delta that still takes text
        self._usage: int | None = None

    def __bool__(self) -> bool:
        return bool(self._events)

    def push(self, event: m.AnyEvent) -> None:
        match event:
            case m.Delta(index, text, tokens):
                if (position := self._growing.get(index)) is not None:
                    held = self._events[position]
                    assert isinstance(held, m.Delta)
                    self._events[position] = m.Delta(index, held.text + text, held.tokens + tokens)
                    return
                self._growing[index] = len(self._events)
            case m.Usage():
                if self._usage is not None:
                    self._events[self._usage] = event
                    return
                self._usage = len(self._events)
            case m.Chunk(index) | m.Finish(index):
                self._growing.pop(index, None)
        self._events.append(event)

    def take_all(self) -> list[m.AnyEvent]:
        """The held events, which are held no longer."""
        events = self._events
        self._clear()
        return events
