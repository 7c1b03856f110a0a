"""vLLM's worker of the platform that this runs on, for our stages to subclass."""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname

PLATFORM_WORKER: Any = resolve_obj_by_qualname(
    "vllm.v1.worker.cpu_worker.CPUWorker" if current_platform.is_cpu() else "vllm.v1.worker.gpu_worker.Worker"
)
