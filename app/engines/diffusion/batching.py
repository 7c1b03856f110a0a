"""Request batching: the pictures that wait, by what can be computed together, and which of them are next."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeVar

import msgspec

from app.cluster.messages import Failed
from app.engines.base import EngineError
from app.engines.diffusion.call import Call
from app.engines.diffusion.lora import Adapters
from app.engines.diffusion.loraweights import Blend
from app.engines.diffusion.pixels import Pixels
from app.engines.diffusion.sound import Samples

Item = TypeVar("Item")


class Sounded(msgspec.Struct, frozen=True):
    """What became of a row where sound is made: float32 (n, channels); and the tokens that its prompt had."""

    samples: Samples
    prompt_tokens: int


class Drawn(msgspec.Struct, frozen=True):
    """What became of a row: one picture, or the layers of one; and the tokens that its prompt had."""

    pictures: list[Pixels]
    prompt_tokens: int


Outcome = Drawn | Sounded | EngineError


class Listener(Protocol):
    """Who asked for a row. Called on the engine's threads."""

    def started(self, row: Row) -> None: ...

    def stepped(self, row: Row, step: int, steps: int) -> None: ...

    def previewed(self, row: Row, number: int, picture: Pixels) -> None: ...

    def filmed(self, row: Row, frames: list[Pixels]) -> None: ...

    def finished(self, row: Row, outcome: Outcome) -> None: ...


class Row:
    """One picture of a call: what the pipeline computes in one row of a batch.

    `cancelled` is set by the event loop and read by the engine's threads: nobody wants it any more.
    """

    __slots__ = ("arrived", "call", "cancelled", "index", "listener", "seed")

    def __init__(self, call: Call, index: int, listener: Listener) -> None:
        self.call = call
        self.index = index
        self.seed = call.seed + index
        self.listener = listener
        self.cancelled = False
        self.arrived = time.monotonic()


class RowQueue:
    """Rows in the order in which their groups take turns; filled by the event loop, emptied by the engine's threads.

    A group is the rows of one key, first come, first served. Groups take turns, so that a flood of one kind of request
    holds back another kind by one batch and no more.
    """

    def __init__(self, most: int, max_wait_s: float = 0.0, max_loras: int = 1) -> None:
        """A batch has `most` rows and `max_loras` different adapters at most.

        A smaller one starts once its oldest row has waited `max_wait_s`.
        """
        self._most = most
        self._max_loras = max_loras
        self._max_wait_s = max_wait_s
        self._groups: OrderedDict[Hashable, deque[Row]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, rows: Iterable[Row]) -> None:
        """Add rows; those of a closed queue fail at once."""
        rows = list(rows)
        with self._changed:
            if not self._closed:
                for row in rows:
                    key = row.call.key if row.call.key is not None else row
                    self._groups.setdefault(key, deque()).append(row)
                self._changed.notify_all()
                return
        _fail(rows)

    def take(self) -> list[Row] | None:
        """The next batch, waiting for one; None: the queue is closed."""
        with self._changed:
            while not self._closed:
                rows, pause = self._next()
                if rows:
                    return rows
                self._changed.wait(pause)
        return None

    def _next(self) -> tuple[list[Row], float | None]:
        """A batch, or how long until one is due."""
        now, pause = time.monotonic(), None
        for key in list(self._groups):
            group = self._groups[key] = deque(row for row in self._groups[key] if not row.cancelled)
            if not group:
                del self._groups[key]
                continue
            most = 1 if isinstance(key, Row) else self._most
            due = group[0].arrived + self._max_wait_s - now
            if len(group) >= most or due <= 0:
                rows = take_together(group, most, lambda row: row.call.blend, self._max_loras)
                self._groups.move_to_end(key)
                return rows, None
            pause = due if pause is None else min(pause, due)
        return [], pause

    def close(self) -> None:
        """Fail what waits, and let the threads go."""
        with self._changed:
            self._closed = True
            rows = [row for group in self._groups.values() for row in group]
            self._groups.clear()
            self._changed.notify_all()
        _fail(rows)


def take_together(waiting: deque[Item], most: int, blend_of: Callable[[Item], Blend], max_loras: int) -> list[Item]:
    """Take the first item, and up to `most` in all whose LoRA adapters can act side by side, out of `waiting`."""
    taken: list[Item] = []
    left: list[Item] = []
    blends: set[Blend] = set()
    for item in waiting:
        with_it = blends | {blend_of(item)}
        if len(taken) < most and (len(with_it) == 1 or Adapters.mixable(list(with_it), max_loras)):
            taken.append(item)
            blends = with_it
        else:
            left.append(item)
    waiting.clear()
    waiting.extend(left)
    return taken


def _fail(rows: Iterable[Row]) -> None:
    for row in rows:
        failed = Failed(503, "the engine is stopping", "service_unavailable_error", code="replica_unavailable")
        row.listener.finished(row, EngineError(failed))
