"""Room in vLLM's cache, handed out before a session begins, so that vLLM never has to take any back.

vLLM preempts what runs when its cache is full, and computes it again later. With a session it cannot: what waits for
input keeps its blocks, so that sessions which all wait for more of them would wait for ever; and of a session that goes
on, vLLM's worker has let go of the rows that it would need once more, which ends EngineCore.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """`blocks` of `block_size` positions. Who has waited the longest is next."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._blocks = self._free = blocks
        self._block_size = block_size
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()

    @asynccontextmanager
    async def hold(self, positions: int) -> AsyncIterator[None]:
        """Room for as many positions, or all that there is; waits for it."""
        wanted = min(-(-positions // self._block_size), self._blocks)
        async with self._turn:
            while self._free < wanted:
                self._released.clear()
                await self._released.wait()
            self._free -= wanted
        try:
            yield
        finally:
            self._free += wanted
            self._released.set()
