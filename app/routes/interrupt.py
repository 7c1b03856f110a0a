"""Ending work early when something else happens: the client leaves, the server is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from litestar.types import Receive


class Interrupt:
    """Waits for one happening in a task of its own; `raising` ends whatever runs when it comes. Close it at the end."""

    def __init__(self, happening: Coroutine[Any, Any, object]) -> None:
        self._waiter = asyncio.create_task(happening)

    @contextmanager
    def raising(self, error: Exception) -> Iterator[None]:
        """Cancel the body when the happening comes (or has come) and raise `error` in its place.

        Works as asyncio.timeout does: a cancellation from elsewhere stays a CancelledError.
        """
        task = asyncio.current_task()
        assert task is not None, "an interrupt guards code that runs in a task"
        before = task.cancelling()
        active, fired = True, False

        def fire(_: object) -> None:
            nonlocal fired
            if active:
                fired = True
                task.cancel()

        self._waiter.add_done_callback(fire)
        try:
            yield
        except asyncio.CancelledError:
            if fired and task.uncancel() <= before:
                raise error from None
            raise
        finally:
            active = False
            self._waiter.remove_done_callback(fire)

    async def close(self) -> None:
        """Wait no longer."""
        self._waiter.cancel()
        await asyncio.wait({self._waiter})


async def disconnected(receive: Receive) -> None:
    """Return once the client has closed the connection. To be awaited when the request body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
