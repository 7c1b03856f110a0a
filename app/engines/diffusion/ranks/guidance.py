"""The two passes of classifier-free guidance on two ranks at a time (--cfg-parallel-size 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist

from app.engines.diffusion.ranks.world import World

_BATCHED = ("UNet2DConditionModel", "SD3Transformer2DModel")
"""Denoisers whose pipelines compute both passes as one batch, the negative half first."""
_IN_TURN = ("QwenImageTransformer2DModel", "WanTransformer3DModel")
"""Denoisers whose pipelines call them twice a step, and use no number of the first pass before the second."""


class Guidance:
    """Installed on every denoiser; acts while `guided` says that the current call has two passes."""

    def __init__(self, world: World) -> None:
        assert world.passes is not None
        self._pass = world.passes.get_local_rank()
        self._group = world.passes.get_group()
        self._guided: Callable[[], bool] = lambda: False
        self._first: torch.Tensor | None = None

    @contextmanager
    def during(self, pipe: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Watch the call of `pipe` with these arguments that is made within."""
        self._guided, self._first = (lambda: _is_guided(pipe, arguments)), None
        try:
            yield
        finally:
            self._guided, self._first = (lambda: False), None

    def install(self, model: Any) -> None:
        """Share the passes of `model`.

        Raises:
            ValueError: nothing is known of how pipelines call such a model.
        """
        name, compute = _class_name(model), model.forward
        if name in _BATCHED:
            share: Callable[..., Any] = self._half
        elif name in _IN_TURN:
            share = self._in_turn
        else:
            raise ValueError(
                f"--cfg-parallel-size: how pipelines guide {name} is not known here; it works with "
                f"{', '.join((*_BATCHED, *_IN_TURN))}"
            )

        def forward(*args: Any, **kwargs: Any) -> Any:
            return share(model, compute, args, kwargs) if self._guided() else compute(*args, **kwargs)

        model.forward = forward

    def _half(self, _: Any, compute: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One batch of both passes: this rank computes its half."""
        given = args[0] if args else kwargs.get("sample", kwargs.get("hidden_states"))
        assert given is not None
        rows = given.shape[0]
        mine = compute(*_halved(args, rows, self._pass), **_halved(kwargs, rows, self._pass))[0]
        return (torch.cat(self._gathered(mine)),)

    def _in_turn(self, model: Any, compute: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first pass is answered with room for its result, which is there when the second one is answered."""
        if self._first is None:
            given = args[0] if args else kwargs["hidden_states"]
            mine = compute(*args, **kwargs)[0].contiguous() if self._pass == 0 else _room(model, given)
            self._first = mine
            return (mine,)
        first, self._first = self._first, None
        second = first if self._pass == 0 else compute(*args, **kwargs)[0].contiguous()
        both = self._gathered(second)
        if self._pass == 1:
            first.copy_(both[0])
        return (both[1],)

    def _gathered(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """What the ranks of both passes have made."""
        mine = mine.contiguous()
        both = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(both, mine, group=self._group)
        return both


def _class_name(model: Any) -> str:
    """That of diffusers: sharded weights make another class of it."""
    return next(cls.__name__ for cls in type(model).__mro__ if not cls.__name__.startswith("FSDP"))


def _is_guided(pipe: Any, arguments: dict[str, Any]) -> bool:
    """As the pipeline itself decides, which may be known only when its call has begun."""
    if hasattr(type(pipe), "do_classifier_free_guidance"):
        return bool(pipe.do_classifier_free_guidance)
    scale = arguments.get("true_cfg_scale", signature(type(pipe).__call__).parameters["true_cfg_scale"].default)
    return float(scale) > 1 and arguments.get("negative_prompt") is not None


def _halved(value: Any, rows: int, half: int) -> Any:
    """The half of every tensor that has a row for each of both passes."""
    if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows:
        return value.chunk(2)[half]
    if isinstance(value, dict):
        return {key: _halved(item, rows, half) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_halved(item, rows, half) for item in value)
    return value


def _room(model: Any, given: torch.Tensor) -> torch.Tensor:
    """An uninitialised result for the input `given`: its shape but for the channels."""
    if _class_name(model) == "WanTransformer3DModel":
        return given.new_empty((given.shape[0], model.config.out_channels, *given.shape[2:]))
    return given.new_empty((*given.shape[:-1], model.config.patch_size**2 * model.config.out_channels))
