"""Values from several sources, laid over each other, with the origin of every value that remains."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec


class Layer(msgspec.Struct, frozen=True):
    """What one source says. `origin` is shown to people ("flag --dtype", "llm.yaml").

    `lines` are those of a file, by the path of the value; they become part of the origin: "llm.yaml:7".
    """

    origin: str
    values: Mapping[str, Any]
    lines: Mapping[str, int] = {}

    def origin_of(self, path: str) -> str:
        """Where the value at `path` ("engine_args.dtype") comes from."""
        return f"{self.origin}:{self.lines[path]}" if path in self.lines else self.origin


class Merged:
    """Layers go in from the weakest to the strongest. Mappings merge key by key, every other value replaces.

    A None takes a value away, so that what is below the layers (an engine's own default) holds again.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def add(self, layer: Layer) -> None:
        """Lay one more source over the earlier ones."""
        self._overlay(self.values, layer.values, layer, "")

    def find(self, path: str) -> Any:
        """The value at a path such as "engine_args.dtype"; None if there is none."""
        found: Any = self.values
        for key in path.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def _overlay(self, below: dict[str, Any], above: Mapping[str, Any], layer: Layer, prefix: str) -> None:
        for key, value in above.items():
            path = f"{prefix}{key}"
            if isinstance(value, Mapping) and value:
                if not isinstance(below.get(key), dict):
                    self._forget(path)
                    below[key] = {}
                self._overlay(below[key], value, layer, f"{path}.")
                continue
            self._forget(path)
            if value is None:
                below.pop(key, None)
            else:
                below[key] = copy.deepcopy(value)
                self.origins[path] = layer.origin_of(path)

    def _forget(self, path: str) -> None:
        for known in [known for known in self.origins if known == path or known.startswith(f"{path}.")]:
            del self.origins[known]
