"""Sleep and wake of vLLM: its weights leave the device, and come back from host memory or from the model's files."""

from __future__ import annotations

import torch

from app.engines.llm.frontend import Frontend
from app.protocol.sleep import SleepOrder, SleepReport


class Sleeper:
    """One engine that was started with --enable-sleep-mode.

    vLLM's allocator for it needs CUDA. On a CPU the engine only pauses, and nothing is freed.
    """

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._level = 0

    async def sleep(self, order: SleepOrder) -> SleepReport:
        """Give memory back; nothing runs by now."""
        before = _free_bytes()
        await self._frontend.sleep(order.level, "abort")
        self._level = max(self._level, order.level)
        return SleepReport(max(0, _free_bytes() - before))

    async def wake_up(self) -> SleepReport:
        """Take it again; after level 2 the weights are read from their files before there is room for a cache."""
        if self._level == 2 and _free_bytes():
            await self._frontend.wake_up(["weights"])
            await self._frontend.collective_rpc("reload_weights")
            await self._frontend.wake_up(["kv_cache"])
        else:
            await self._frontend.wake_up()
        await self._frontend.resume_generation()
        self._level = 0
        return SleepReport()


def _free_bytes() -> int:
    """Of all devices that this process sees; 0 where there is none."""
    if not torch.cuda.is_available():
        return 0
    return sum(torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count()))
