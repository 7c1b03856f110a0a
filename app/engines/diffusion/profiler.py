"""How long each part of a pipeline call took: --enable-diffusion-pipeline-profiler."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from app.engines.diffusion.parts import denoisers

logger = logging.getLogger("app.diffusion")

Durations = dict[str, float]
"""Seconds by stage: encode_prompt, encode_image, denoise, decode, other, total. A stage that did not run has none."""

_METHODS = (("vae", "encode", "encode_image"), ("vae", "decode", "decode"))
"""Methods of shared components, and the stage that they are."""


class Profiler:
    """Measures the calls of pipelines on shared components, of several threads at a time."""

    def __init__(self, pipe: Any) -> None:
        """Put a clock on the components of `pipe`, which its shells and siblings share."""
        self._here = threading.local()
        self._pipe = pipe
        for component, method, stage in _METHODS:
            part = getattr(pipe, component, None)
            if part is not None and hasattr(part, method):
                setattr(part, method, self._clocked(getattr(part, method), stage))

    @contextmanager
    def measured(self, pipe: Any) -> Iterator[Durations]:
        """The durations of the one call of the shell `pipe` that is made within; complete on leaving, and logged then.

        Denoisers that are not modules of torch (those of step execution) are clocked by their owner with `clock`.
        """
        durations: Durations = {}
        self._here.durations = durations
        if hasattr(pipe, "encode_prompt"):
            pipe.encode_prompt = self._clocked(pipe.encode_prompt, "encode_prompt")
        begin = self._now()
        with ExitStack() as stack:
            stack.callback(setattr, self._here, "durations", None)
            for model in denoisers(pipe).values():
                stack.callback(model.register_forward_pre_hook(self._begin).remove)
                stack.callback(model.register_forward_hook(self._end).remove)
            yield durations
            total = self._now() - begin
        durations["other"] = max(0.0, total - sum(durations.values()))
        durations["total"] = total
        told = ", ".join(f"{stage} {seconds * 1000:.1f} ms" for stage, seconds in durations.items())
        logger.info("%s took %s", type(pipe).__name__, told)

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Count what runs within as `stage` of the call that this thread measures; nothing if it measures none."""
        durations: Durations | None = getattr(self._here, "durations", None)
        if durations is None:
            yield
            return
        begin = self._now()
        try:
            yield
        finally:
            durations[stage] = durations.get(stage, 0.0) + self._now() - begin

    def _clocked(self, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def clocked(*args: Any, **kwargs: Any) -> Any:
            with self.clock(stage):
                return method(*args, **kwargs)

        return clocked

    def _begin(self, *_: Any) -> None:
        self._here.began = self._now()

    def _end(self, *_: Any) -> None:
        durations: Durations = self._here.durations
        durations["denoise"] = durations.get("denoise", 0.0) + self._now() - self._here.began

    @staticmethod
    def _now() -> float:
        """After what the device still computes, or its time would be counted where somebody waits for it."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return time.perf_counter()
