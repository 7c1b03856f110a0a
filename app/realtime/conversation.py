"""The conversation of one socket: its items in their order, within limits of number and size."""

from __future__ import annotations

import msgspec

from app.protocol.errors import ApiError, invalid
from app.protocol.realtimeitems import Item, ItemReference, Message, OutputAudio, size_of
from app.realtime.soundtrack import Soundtrack

MAX_ITEMS = 1000
ROOT = "root"
"""The place before the first item."""


class Entry:
    """An item, with the soundtrack of what has been said in it; `open` while a response works on it."""

    def __init__(self, item: Item, *, open: bool = False) -> None:
        self.item = item
        self.open = open
        self.soundtrack = Soundtrack()
        self.size = size_of(item)


class Conversation:
    """At most `most_bytes` of items. What is too much is refused, or pushes the oldest items out: see `add`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: list[Entry] = []

    @property
    def items(self) -> list[Item]:
        """All of them, the oldest first."""
        return [entry.item for entry in self._entries]

    @property
    def last_id(self) -> str | None:
        """The id of the last item."""
        return self._entries[-1].item.item_id if self._entries else None

    def entry(self, item_id: str, param: str = "item_id") -> Entry:
        """
        Raises:
            ApiError: 404, there is no such item; `param` is where the client has named it.
        """
        return self._entries[self._position(item_id, param)]

    def _position(self, item_id: str, param: str) -> int:
        for position, entry in enumerate(self._entries):
            if entry.item.item_id == item_id:
                return position
        message = f"{param}: there is no item {item_id[:70]!r} in the conversation."
        raise ApiError(404, message, param=param, code="item_not_found")

    def previous(self, item_id: str) -> str | None:
        """The id of the item before that one."""
        position = self._position(item_id, "item_id")
        return self._entries[position - 1].item.item_id if position else None

    def add(self, entry: Entry, after: str | None = None, *, evict: bool = True) -> list[str]:
        """Put an item after another one, or ROOT, or at the end. Returns the ids of those that had to go for it.

        Raises:
            ApiError: 400, there is an item of that id; 404, there is none to put it after; 413, it is too large, or
                there is no room for it and nothing may go.
        """
        if any(other.item.item_id == entry.item.item_id for other in self._entries):
            raise invalid("item.id", "is that of an item which is there already")
        if entry.size > self._most_bytes:
            raise self._too_large("The item has")
        position = len(self._entries)
        if after is not None:
            position = 0 if after == ROOT else self._position(after, "previous_item_id") + 1
        if not evict and not self._fits(entry.size, 1):
            raise self._too_large("The conversation would have")
        self._entries.insert(position, entry)
        return self._make_room(entry)

    def _fits(self, more: int, count: int) -> bool:
        size = sum(entry.size for entry in self._entries) + more
        return size <= self._most_bytes and len(self._entries) + count <= MAX_ITEMS

    def _make_room(self, kept: Entry) -> list[str]:
        gone: list[str] = []
        while not self._fits(0, 0):
            oldest = next((entry for entry in self._entries if entry is not kept and not entry.open), None)
            if oldest is None:
                break
            self._entries.remove(oldest)
            gone.append(oldest.item.item_id)
        return gone

    def _too_large(self, what: str) -> ApiError:
        message = (
            f"{what} more than {self._most_bytes} bytes (--realtime-max-conversation) or {MAX_ITEMS} items; "
            "delete what is not needed any more."
        )
        return ApiError(413, message, param="item", code="conversation_full")

    def settle(self, entry: Entry, item: Item) -> list[str]:
        """An item has become another one for good. Returns the ids of those that had to go for it."""
        entry.item, entry.open = item, False
        entry.size = size_of(item)
        return self._make_room(entry)

    def delete(self, item_id: str) -> None:
        """
        Raises:
            ApiError: 404, there is no such item; 400, a response works on it.
        """
        entry = self.entry(item_id)
        if entry.open:
            raise ApiError(400, f"A response works on the item {item_id}: cancel it first.", param="item_id")
        self._entries.remove(entry)

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Of what the assistant has said in an item only so much has been heard: the rest is forgotten.

        Raises:
            ApiError: 404, there is no such item; 400, it cannot be cut there.
        """
        entry = self.entry(item_id)
        part = entry.item.content[0] if isinstance(entry.item, Message) and entry.item.content else None
        if entry.open or not isinstance(part, OutputAudio):
            raise invalid("item_id", "is not an item in which the assistant has said something, to its end")
        if content_index != 0:
            raise invalid("content_index", "must be 0: that is where the sound is")
        if audio_end_ms > entry.soundtrack.milliseconds:
            raise invalid("audio_end_ms", f"is after the end of the sound, {entry.soundtrack.milliseconds} ms")
        heard = entry.soundtrack.heard(audio_end_ms, part.transcript or "")
        cut = OutputAudio(transcript=heard)
        self.settle(entry, msgspec.structs.replace(entry.item, content=[cut]))

    def referred(self, items: list[Item | ItemReference]) -> list[Item]:
        """The items, those that are only named taken from the conversation.

        Raises:
            ApiError: 404, there is no such item.
        """
        return [
            self.entry(item.id, f"response.input[{position}].id").item if isinstance(item, ItemReference) else item
            for position, item in enumerate(items)
        ]
