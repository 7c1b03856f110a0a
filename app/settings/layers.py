"""Values from several sources, laid over each other, with the origin of every value that remains."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec


class Layer(msgspec.Struct, frozen=True):
    """What one source says. `origin` is shown to people ("flag --dtype", "llm.yaml (stage 0)")."""

    origin: str
    values: Mapping[str, Any]


class Merged:
    """Layers go in from the weakest to the strongest. Mappings merge key by key, every other value replaces.

    A None takes a value away, so that what is below the layers (an engine's own default) holds again.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def add(self, layer: Layer) -> None:
        """Lay one more source over the earlier ones."""
        self._overlay(self.values, layer.values, layer.origin, "")

    def _overlay(self, below: dict[str, Any], above: Mapping[str, Any], origin: str, prefix: str) -> None:
        for key, value in above.items():
            path = f"{prefix}{key}"
            if isinstance(value, Mapping) and value:
                if not isinstance(below.get(key), dict):
                    self._forget(path)
                    below[key] = {}
                self._overlay(below[key], value, origin, f"{path}.")
                continue
            self._forget(path)
            if value is None:
                below.pop(key, None)
            else:
                below[key] = copy.deepcopy(value)
                self.origins[path] = origin

    def _forget(self, path: str) -> None:
        for known in [known for known in self.origins if known == path or known.startswith(f"{path}.")]:
            del self.origins[known]
