"""A talk request without a network: fed with a thinker's tensors by hand, it keeps the codes that come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from app.cluster import messages as m
from app.cluster.tensors import Tensor
from app.engines.omni.talker.engine import TalkerEngine
from app.engines.omni.torchtensors import from_torch, to_torch
from app.protocol.speechtask import SpeechTask, encode_task

Handovers = Iterable[Mapping[str, Tensor]]
WIDTH = 128
"""Of the tiny Qwen2.5-Omni thinker's rows."""
GREEDY: dict[str, Any] = {"temperature": 0, "repetition_penalty": 1.0, "max_tokens": 64}


class Talking:
    """Implements app.engines.base.Request."""

    wants_tensors = True

    def __init__(self, task: SpeechTask | None = None, kind: str = "talk", **extra: Any) -> None:
        self.request_id = "talking"
        self.kind = kind
        self.model = ""
        self.body = encode_task(task or SpeechTask(extra=GREEDY | extra))
        self.events: list[m.AnyEvent] = []
        self.frames: list[torch.Tensor] = []
        self._inputs: asyncio.Queue[dict[str, Tensor] | None] = asyncio.Queue()

    def hand(self, tensors: Mapping[str, Tensor] | None) -> None:
        """What the thinker makes, in a copy that goes when the next one is asked for; None: its end."""
        self._inputs.put_nowait(None if tensors is None else dict(tensors))

    async def next_tensors(self) -> dict[str, Tensor] | None:
        return await self._inputs.get()

    async def next_input(self) -> bytes | None:
        raise AssertionError("a talker takes tensors")

    def emit(self, event: m.AnyEvent) -> None:
        self.events.append(event)

    def emit_tensors(self, named: Mapping[str, Tensor]) -> None:
        assert list(named) == ["codes"]
        self.frames.append(to_torch(named["codes"]))

    async def ready(self) -> None:
        await asyncio.sleep(0)

    @property
    def codes(self) -> list[Any]:
        """All that has come, one frame after the other."""
        return [code for frames in self.frames for code in frames.tolist()]


async def talk(engine: TalkerEngine, request: Talking, handovers: Handovers, pauses: Iterable[float] = ()) -> list[Any]:
    """Run a request to its end, the thinker pausing before its handovers; its codes."""
    pending = iter(pauses)

    async def think() -> None:
        for tensors in handovers:
            await asyncio.sleep(next(pending, 0.0))
            request.hand(tensors)
        request.hand(None)

    async with asyncio.timeout(120):
        thinking = asyncio.create_task(think())
        await engine.run(request)
        thinking.cancel()
    assert request.events[0] == m.Accepted()
    assert request.events[1:] == [m.Usage(0, len(request.codes)), m.Done()]
    return request.codes


def thought(prompt: int = 20, reply: int = 12, seed: int = 0) -> dict[str, Tensor]:
    """Something to say that no thinker has thought: noise of the tiny model's width, as one handover."""
    numbers = torch.Generator().manual_seed(seed)
    return {
        "token_ids": from_torch(torch.zeros(prompt + reply, dtype=torch.int32)),
        "rows": from_torch(torch.randn(prompt + reply, WIDTH, generator=numbers)),
        "mrope_positions": from_torch(torch.arange(prompt, dtype=torch.int32).repeat(3, 1)),
    }
