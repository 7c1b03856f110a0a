"""LoRA weights within the components of a pipeline: loaded, switched, mixed by row, and dropped when long unused."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError

_RAISED_BY_LOADING = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, SafetensorError)
_BASE = "__base__"
"""What peft calls the model without an adapter, for one row of a batch."""


class Part(msgspec.Struct, frozen=True):
    """One adapter of a blend: its name, or the absolute path of its file, and how strongly it acts."""

    source: str
    weight: float


Blend = tuple[Part, ...]
"""The adapters that act on one picture; () is the model itself."""


class LoraWeights:
    """The adapters that are loaded into `pipe`, by source; at most `most`, beside those that are pinned."""

    def __init__(self, pipe: Any, most: int) -> None:
        self._pipe = pipe
        self._most = most
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._pinned: set[str] = set()
        self._state: tuple[Blend, ...] | None = None
        self._count = 0

    @property
    def sources(self) -> list[str]:
        """What is loaded, the longest unused first."""
        return list(self._keys)

    def load(self, source: str, file: Path, keep: frozenset[str] = frozenset()) -> None:
        """Load `file` if `source` is not loaded. The longest unused make room, except those to `keep`.

        Raises:
            ValueError: the file is broken, or is no adapter for this model.
        """
        if source in self._keys:
            self._keys.move_to_end(source)
            return
        self._make_room(keep | {source})
        key = f"adapter{self._count}"  # peft takes no dots, and paths have some
        self._count += 1
        self._state = None
        try:
            self._pipe.load_lora_weights(
                str(file.parent), weight_name=file.name, adapter_name=key, local_files_only=True
            )
        except _RAISED_BY_LOADING as error:
            self._delete(key)
            what = str(error).strip().partition("\n")[0]
            raise ValueError(f"the LoRA adapter {file.name} cannot be loaded into this model: {what}") from error
        if not any(key in keys for keys in self._pipe.get_list_adapters().values()):
            self._delete(key)
            raise ValueError(f"the LoRA adapter {file.name} has no weights for this model")
        self._keys[source] = key

    def pin(self, source: str) -> None:
        """A loaded one stays, and is not counted."""
        self._pinned.add(source)

    def drop(self, source: str) -> None:
        """Free the weights, if they are loaded."""
        if (key := self._keys.pop(source, None)) is not None:
            self._delete(key)

    def fuse(self, scale: float) -> None:
        """Make all that is loaded, each with weight 1, a part of the model's own weights, for good."""
        keys = list(self._keys.values())
        self._pipe.set_adapters(keys, [1.0] * len(keys))
        self._pipe.fuse_lora(components=self._components(), lora_scale=scale, adapter_names=keys)
        self._pipe.unload_lora_weights()  # takes away what could be undone, not what was fused
        self._keys.clear()
        self._pinned.clear()
        self._count = 0
        self._state = None

    @contextmanager
    def active(self, blends: Sequence[Blend]) -> Iterator[None]:
        """Within, each row of a call has its blend. All sources must be loaded."""
        self._switch(tuple(dict.fromkeys(blends)))
        if len(set(blends)) < 2:
            yield
            return
        rows = [self._keys[blend[0].source] if blend else _BASE for blend in blends]

        def tell(layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            size = len(args[0])
            if size % len(rows):
                raise ValueError(f"{type(layer).__name__} has {size} rows for {len(rows)} requests: they cannot mix")
            return args, {**kwargs, "adapter_names": rows * (size // len(rows))}

        with ExitStack() as stack:
            for layer in self._layers():
                stack.callback(layer.register_forward_pre_hook(tell, with_kwargs=True).remove)
            yield

    def _switch(self, blends: tuple[Blend, ...]) -> None:
        if blends == self._state or not self._count:
            return
        self._state = None
        parts = dict.fromkeys(part for blend in blends for part in blend)
        if parts:
            self._pipe.set_adapters([self._keys[part.source] for part in parts], [part.weight for part in parts])
            self._pipe.enable_lora()
        else:
            self._pipe.disable_lora()
        self._state = blends

    def _make_room(self, keep: frozenset[str]) -> None:
        for source in list(self._keys):
            if len(self._keys.keys() - self._pinned) < self._most:
                return
            if source not in keep | self._pinned:
                self.drop(source)

    def _delete(self, key: str) -> None:
        self._state = None
        with contextlib.suppress(ValueError):  # what failed to load may have left nothing to delete
            self._pipe.delete_adapters(key)

    def _components(self) -> list[str]:
        return [name for name in self._pipe._lora_loadable_modules if getattr(self._pipe, name, None) is not None]

    def _layers(self) -> Iterator[torch.nn.Module]:
        for name in self._components():
            yield from (part for part in getattr(self._pipe, name).modules() if isinstance(part, BaseTunerLayer))
