"""What kind of model a hub id names: from the hub's cache, or by one small question to the hub. No engine, no torch."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from app.settings.inspection import inspect
from app.settings.pipelines import Found, by_class_name, by_config, by_model_type

T = TypeVar("T")
LookUp = Callable[[str, str, str], Found | None]
"""Hub.look_up, or what answers in its place."""

_TIMEOUT_S = 5.0
_TRUE = {"1", "on", "yes", "true"}
_INDEXES = {"model_index.json", "modular_model_index.json"}


class _Diffusers(msgspec.Struct):
    class_name: str | None = msgspec.field(default=None, name="_class_name")


class _Config(msgspec.Struct):
    model_type: str = ""
    architectures: list[str] = []
    diffusers: _Diffusers | None = None


class _File(msgspec.Struct):
    rfilename: str


class ModelCard(msgspec.Struct):
    """The part of the hub's answer about a model that matters here."""

    config: _Config | None = None
    siblings: list[_File] = []

    def found(self) -> Found:
        """What it is.

        Raises:
            ValueError: nothing that any pipeline serves.
        """
        names = [file.rfilename for file in self.siblings]
        config = self.config or _Config()
        if config.diffusers is not None or not _INDEXES.isdisjoint(names):
            return by_class_name((config.diffusers and config.diffusers.class_name) or "")
        if names and "config.json" not in names:
            raise ValueError(_only_files(names))
        return by_model_type(config.model_type, config.architectures)


def _only_files(names: list[str]) -> str:
    if any(name.endswith(".gguf") for name in names):
        return "it has only GGUF files; of a diffusion model, download one and give its path"
    if any(name.endswith(".safetensors") for name in names):
        return "it has neither config.json nor model_index.json, only weights; download the file and give its path"
    return "it has neither config.json nor model_index.json"


class Hub:
    """The hub as the environment describes it: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE, HF_HOME."""

    def __init__(self, environ: Mapping[str, str], warnings: list[str]) -> None:
        self._environ = environ
        self._warnings = warnings

    def look_up(self, model: str, revision: str = "main", cache: str = "") -> Found | None:
        """What a hub model is; None if that cannot be known now, and a warning says why.

        Raises:
            ValueError: there is no such model, or no pipeline for it.
        """
        snapshot = self.snapshot(model, revision, cache)
        if snapshot is not None:
            return inspect(snapshot)
        if any(self._environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
            self._warnings.append(f"{model} is not in the hub's cache, and HF_HUB_OFFLINE forbids to ask for it")
            return None
        try:
            return self._asked(model, revision)
        except ValueError as error:
            raise ValueError(f"the model {model} cannot be served: {error}") from None

    def _asked(self, model: str, revision: str) -> Found | None:
        card = self._get(f"/api/models/{model}/revision/{revision}", model, ModelCard)
        found = card.found() if card else None
        if found is None or not found.pipeline.talks:
            return found
        # Whether the checkpoint has what talks is in its config.json alone.
        config = self._get(f"/{model}/resolve/{revision}/config.json", model, dict[str, Any])
        return by_config(config) if config else None

    def snapshot(self, model: str, revision: str, cache: str) -> Path | None:
        """The directory in the cache, if its files are there."""
        home = self._environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
        base = Path(cache or self._environ.get("HF_HUB_CACHE") or Path(home) / "hub")
        repository = base / f"models--{model.replace('/', '--')}"
        reference = repository / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        snapshot = repository / "snapshots" / commit
        known = ("config.json", "model_index.json", "modular_model_index.json")
        return snapshot if any((snapshot / name).is_file() for name in known) else None

    def _get(self, path: str, model: str, kind: type[T]) -> T | None:
        endpoint = self._environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        request = urllib.request.Request(f"{endpoint}{path}")
        if token := self._environ.get("HF_TOKEN"):
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return msgspec.json.decode(answer.read(), type=kind)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 404):
                raise ValueError(
                    f"{endpoint} has no such model or revision, or HF_TOKEN is not set to a token for it"
                ) from None
            self._warn(model, f"HTTP status {error.code}")
        except (OSError, msgspec.DecodeError) as error:
            self._warn(model, str(getattr(error, "reason", error)))
        return None

    def _warn(self, model: str, reason: str) -> None:
        self._warnings.append(
            f"the hub cannot be asked about {model} ({reason}); where neither --model-class-name nor a deploy file "
            "(speech.yaml, qwen2_5_omni.yaml) says what it is, it is taken for a language model"
        )
