"""What a client is handed of an answer that one stage writes and another one makes heard."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from app.cluster import messages as m


class SpokenEvents:
    """Sorts the events of both sides: nearly everything goes out at once, what ends an answer when both are done.

    Each Usage that goes out counts both.
    """

    def __init__(self) -> None:
        self._finish: list[m.AnyEvent] = []
        self._text_usage: m.Usage | None = None
        self._sound_usage = m.Usage(0, 0)

    def of_text(self, batch: Iterable[m.AnyEvent]) -> list[m.AnyEvent]:
        """What goes out of a batch of the stage that writes."""
        events: list[m.AnyEvent] = []
        for event in batch:
            match event:
                case m.Finish():
                    self._finish.append(event)
                case m.Usage():
                    self._text_usage = event
                    events.append(_summed(event, self._sound_usage))
                case m.Done():
                    pass
                case _:
                    events.append(event)
        return events

    def of_sound(self, batch: Iterable[m.AnyEvent]) -> list[m.AnyEvent]:
        """What goes out of a batch of the stage that makes the sound."""
        events: list[m.AnyEvent] = []
        for event in batch:
            match event:
                case m.Usage():
                    self._sound_usage = event
                    if self._text_usage is not None:
                        events.append(_summed(self._text_usage, event))
                case m.Done():
                    pass
                case _:
                    events.append(event)
        return events

    def ending(self) -> list[m.AnyEvent]:
        """What goes out when both are done."""
        return [*self._finish, m.Done()]


def _summed(text: m.Usage, sound: m.Usage) -> m.Usage:
    """The prompt is that of the text, the completion is text and sound."""
    details = msgspec.json.decode(text.details, type=dict[str, dict[str, object]]) if text.details else {}
    made = {"text_tokens": text.completion_tokens, "audio_tokens": sound.completion_tokens}
    details["completion_tokens_details"] = {**details.get("completion_tokens_details", {}), **made}
    total = text.completion_tokens + sound.completion_tokens
    return m.Usage(text.prompt_tokens, total, msgspec.json.encode(details))
