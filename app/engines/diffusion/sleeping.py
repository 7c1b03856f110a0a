"""Sleep and wake of a pipeline: its weights leave the device, and come back from host memory or from their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from app.cluster.messages import Failed
from app.engines.base import EngineError
from app.engines.device import release_memory
from app.engines.diffusion.parts import modules
from app.protocol.sleep import SleepOrder, SleepReport

_ADAPTED = ".base_layer"
"""In the names of weights beside which a LoRA adapter is loaded."""


class Sleeper:
    """One loaded pipeline, whose weights are where its parts are. Nothing runs while one of the methods does."""

    def __init__(self, pipe: Any, device: torch.device, reload: Callable[[], Any]) -> None:
        """`reload` loads another pipeline like `pipe` from its files, on the device."""
        self._pipe = pipe
        self._device = device
        self._reload = reload
        self._level = 0

    def sleep(self, order: SleepOrder) -> SleepReport:
        """Give the device's memory back; at level 2 the host's as well.

        Raises:
            EngineError: 400, weights that are quantized cannot be dropped, as they are nowhere as they are.
        """
        parts = modules(self._pipe)
        if order.level == 2 and (name := next((name for name, part in parts.items() if _is_special(part)), None)):
            message = f"the weights of {name} are quantized, and are not in the model's files so: use level 1"
            raise EngineError(Failed(400, message, "invalid_request_error", param="level"))
        freed = 0
        for part in parts.values():
            leaves_device = self._level == 0 and self._device.type != "cpu"
            freed += _bytes(part) if order.level == 2 or leaves_device else 0
            if order.level == 2:
                for tensor in _weights(part).values():
                    tensor.data = tensor.data.new_empty(0)
            else:
                part.to("cpu")
        release_memory()
        self._level = max(self._level, order.level)
        return SleepReport(freed)

    def wake_up(self) -> SleepReport:
        """Have everything on the device again."""
        if self._level == 2:
            fresh = self._reload()
            for name, part in modules(self._pipe).items():
                _fill(part, _weights(getattr(fresh, name)))
        elif self._level == 1:
            for part in modules(self._pipe).values():
                part.to(self._device)
        self._level = 0
        return SleepReport()


def _fill(part: torch.nn.Module, fresh: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in _weights(part).items():
        tensor.data = fresh[name].data


def _weights(part: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What comes from the model's files, or is computed when they are loaded; not what belongs to an adapter."""
    named: Iterator[tuple[str, torch.Tensor]] = iter((*part.named_parameters(), *part.named_buffers()))
    return {name.replace(_ADAPTED, ""): tensor for name, tensor in named if "lora_" not in name}


def _bytes(part: torch.nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _weights(part).values())


def _is_special(part: torch.nn.Module) -> bool:
    """Tensors of classes of their own hold more than their data."""
    return any(type(x) not in (torch.nn.Parameter, torch.Tensor) for x in _weights(part).values())
