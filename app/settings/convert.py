"""The old form of deploy files (`stage_args`) in the new one, with what had to be left out and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from app.settings.flags import by_engine_argument
from app.settings.stagefields import DECIDED_BY_PIPELINE
from app.settings.yamlfile import read_mapping

_ENGINE_DECIDED = frozenset(
    {
        "model",
        "model_stage",
        "model_arch",
        "worker_cls",
        "worker_type",
        "scheduler_cls",
        "engine_output_type",
        "hf_config_name",
        "custom_process_next_stage_input_func",
    }
)
_TOP_KEPT = ("async_chunk", "trust_remote_code", "distributed_executor_backend", "dtype", "quantization", "platforms")


class Converted(NamedTuple):
    """The content in the new form, notes on what it lacks, and the lines of its values in the old file by key path."""

    content: dict[str, Any]
    notes: list[str]
    lines: dict[str, int]


class Converter:
    """Converts one file; `notes` tell what was left out or has another name now."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def convert(self, old: dict[str, Any]) -> dict[str, Any]:
        """The new content.

        Raises:
            ValueError: it is not of the old form; the message says what is wrong.
        """
        entries = old.get("stage_args")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("stage_args: expected a list of stages; only files of the old form can be converted")
        new: dict[str, Any] = {key: old[key] for key in _TOP_KEPT if key in old}
        new |= self._connections(old.get("runtime") or {})
        new["stages"] = [self._stage(index, entry) for index, entry in enumerate(entries)]
        for key in old.keys() - {"stage_args", "runtime", *_TOP_KEPT}:
            self.notes.append(f"{key}: has no place in the new form")
        return new

    def _connections(self, runtime: dict[str, Any]) -> dict[str, Any]:
        kept = {key: runtime[key] for key in ("connectors", "edges") if runtime.get(key)}
        self.notes += (
            f"runtime.{key}: has no place in the new form"
            for key in runtime
            if key not in ("connectors", "edges", "enabled")
        )
        return kept

    def _stage(self, index: int, old: dict[str, Any]) -> dict[str, Any]:
        where = f"stage_args[{index}]"
        stage: dict[str, Any] = {"stage_id": old.get("stage_id", index)}
        self._runtime(where, dict(old.get("runtime") or {}), stage)
        self._arguments(where, dict(old.get("engine_args") or {}), stage)
        for key, value in old.items():
            if key in ("stage_id", "runtime", "engine_args"):
                continue
            if key in DECIDED_BY_PIPELINE:
                self.notes.append(f"{where}.{key}: the pipeline decides it")
            else:
                stage[key] = value
        return stage

    def _runtime(self, where: str, runtime: dict[str, Any], stage: dict[str, Any]) -> None:
        for key, value in runtime.items():
            if key in ("devices", "num_replicas", "env"):
                stage[key] = value
            elif key == "max_batch_size":
                stage["max_num_seqs"] = value
                self.notes.append(f"{where}.runtime.max_batch_size: is max_num_seqs now")
            else:
                self.notes.append(f"{where}.runtime.{key}: every stage runs in processes of its own")

    def _arguments(self, where: str, arguments: dict[str, Any], stage: dict[str, Any]) -> None:
        others = {}
        for key, value in arguments.items():
            if key in _ENGINE_DECIDED:
                self.notes.append(f"{where}.engine_args.{key}: the pipeline decides it")
            elif key in by_engine_argument():
                stage[key] = value
            else:
                others[key] = value
        if others:
            stage["engine_args"] = others


def read_old(path: Path) -> Converted:
    """What a file of the old form says.

    Raises:
        ValueError: the file cannot be read, or is not of the old form.
    """
    content, lines = read_mapping(path)
    converter = Converter()
    try:
        new = converter.convert(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    moved = {re.sub(r"^stage_args\[", "stages[", place): line for place, line in lines.items()}
    return Converted(new, converter.notes, moved)


def convert_file(path: Path) -> str:
    """The text of the new file; notes are comments at its top.

    Raises:
        ValueError: the file cannot be read, or is not of the old form.
    """
    new, notes, _ = read_old(path)
    told = "".join(f"#   {note}\n" for note in notes)
    head = f"# Converted from {path.name}.\n" + (f"# Left out or renamed:\n{told}" if told else "")
    return head + yaml.safe_dump(new, sort_keys=False, allow_unicode=True)
