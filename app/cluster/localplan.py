"""How many replicas of each stage run on the server's host, on which devices: what was configured, then `scale`."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from app.cluster.messages import Scale
from app.settings.devices import device_sets, shares_devices, split_devices, world_size
from app.settings.schema import StageConfig


class _Scaled(msgspec.Struct):
    """`added`: sets of devices beside those of the configuration."""

    replicas: int
    added: list[str] = []


_decode = msgspec.json.Decoder(dict[int, _Scaled]).decode


class LocalPlan:
    """Kept in `file` of the run directory, where the master that replaces a lost one finds it."""

    def __init__(self, stages: list[StageConfig], file: Path) -> None:
        self._file = file
        self._stages = {stage.stage_id: stage for stage in stages}
        self._scaled: dict[int, _Scaled] = _decode(file.read_bytes()) if file.exists() else {}

    def wanted(self, stage_id: int) -> int:
        """How many replicas of the stage shall run here."""
        scaled = self._scaled.get(stage_id)
        return scaled.replicas if scaled else self._stages[stage_id].num_replicas

    def change(self, scale: Scale) -> StageConfig | None:
        """Take over what an administrator wants; the stage, None if none of that id runs here."""
        stage = self._stages.get(scale.stage_id)
        if stage is None:
            return None
        scaled = self._scaled.setdefault(scale.stage_id, _Scaled(stage.num_replicas))
        scaled.replicas = scale.replicas
        if scale.devices:
            scaled.added += split_devices(scale.devices, world_size(stage))
        draft = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(self._scaled))
        draft.replace(self._file)
        return stage

    def devices(self, stage: StageConfig, used: Collection[str]) -> str:
        """The devices of one more replica: a set that is not `used`, or those that all replicas of the stage share.

        Raises:
            LookupError: all sets are used.
        """
        sets = device_sets(stage, stage.num_replicas)
        scaled = self._scaled.get(stage.stage_id)
        for each in [*sets, *(scaled.added if scaled else [])]:
            if each not in used:
                return each
        if shares_devices(stage):
            return sets[0]
        raise LookupError(f"all devices of stage {stage.name} are in use")
