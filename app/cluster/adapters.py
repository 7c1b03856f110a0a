"""The LoRA adapters that every replica of a stage has to have loaded, remembered by the master."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from app.cluster.messages import Adapter, DropAdapter, KeepAdapter

_decode = msgspec.json.Decoder(list[Adapter]).decode


class AdapterBook:
    """Kept in `file` of the run directory, where the master that replaces a lost one finds it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.adapters: list[Adapter] = _decode(file.read_bytes()) if file.exists() else []

    def apply(self, change: KeepAdapter | DropAdapter) -> None:
        """Take over what an API worker has done to all replicas."""
        if isinstance(change, KeepAdapter):
            added = change.adapter
            self.adapters = [*self._without(added.stage_id, added.name), added]
        else:
            self.adapters = self._without(change.stage_id, change.name)
        draft = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(self.adapters))
        draft.replace(self._file)

    def _without(self, stage_id: int, name: str) -> list[Adapter]:
        return [adapter for adapter in self.adapters if (adapter.stage_id, adapter.name) != (stage_id, name)]
