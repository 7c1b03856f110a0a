"""LoRA adapters of a pipeline: those of the start, those loaded while it runs, and the choice of each request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from app.cluster.messages import Adapter, Failed
from app.engines.base import EngineError
from app.engines.diffusion.lorafiles import adapter_name, find_weights
from app.engines.diffusion.loraweights import Blend, LoraWeights, Part
from app.engines.diffusion.options import DiffusionOptions
from app.protocol.errors import default_type
from app.protocol.pictures import LoraChoice

logger = logging.getLogger("app.diffusion")


class Adapters:
    """Names and paths of adapters, and who may use them. The weights are shared by all shells and siblings of `pipe`.

    `resolve` and `names` may be called from any thread; everything else waits until no call runs under `active`.
    """

    def __init__(self, pipe: Any, options: DiffusionOptions) -> None:
        """Load the adapters of --lora-path.

        Raises:
            ValueError: the pipeline takes no adapters, one of --lora-path cannot be loaded, or --lora-dir names no
                directory.
        """
        self._class = type(pipe).__name__
        self._possible = hasattr(pipe, "load_lora_weights") and bool(getattr(pipe, "_lora_loadable_modules", None))
        self.most = options.max_loras
        self._weights = LoraWeights(pipe, options.max_loras)
        self._allowed = [_directory(given) for given in options.lora_dir]
        self._files: dict[str, Path] = {}
        self._routed: dict[str, Adapter] = {}
        self._listed: list[Adapter] = []
        self._default: Blend = ()
        self._lock = threading.Lock()
        for given in options.lora_path:
            self._load_at_start(given)
        if options.lora_path and options.lora_backend == "distill":
            self._weights.fuse(options.lora_scale)
            self._files.clear()
        self._fixed = frozenset(self._files)
        self._default = tuple(Part(name, options.lora_scale) for name in self._files)

    def _load_at_start(self, given: str) -> None:
        try:
            if not self._possible:
                raise ValueError(f"{self._class} takes no LoRA adapters; remove it")
            file = find_weights(Path(given).expanduser())
            name = adapter_name(file)
            if name in self._files:
                raise ValueError(f"another adapter is named {name!r} already")
            self._weights.load(name, file)
        except ValueError as error:
            raise ValueError(f"--lora-path {given}: {error}") from None
        self._weights.pin(name)
        self._files[name] = file

    # ------------------------------------------------------------------------------------------------ requests

    @property
    def possible(self) -> bool:
        """Whether the pipeline takes adapters at all."""
        return self._possible

    def names(self) -> list[str]:
        """The names by which requests can choose an adapter."""
        return sorted(self._files)

    def resolve(self, choices: Sequence[LoraChoice]) -> Blend:
        """What a request's choices mean; without any, the adapters of --lora-path act.

        Raises:
            EngineError: 400, the pipeline takes no adapters, too many, or one is named twice; 403, a path outside of
                the directories of --lora-dir; 404, an unknown name, or nothing at a path.
        """
        if not choices:
            return self._default
        if not self._possible:
            _refuse(400, f"{self._class} takes no LoRA adapters")
        blend = tuple(Part(self._source(choice), choice.scale) for choice in choices)
        if len({part.source for part in blend}) < len(blend):
            _refuse(400, "an adapter is named twice; name it once, with the sum of the scales")
        if len(blend) > self.most:
            _refuse(400, f"at most {self.most} adapters can act together here (--max-loras)")
        return blend

    def _source(self, choice: LoraChoice) -> str:
        if choice.path:
            return str(self._allowed_file(choice.path))
        if choice.name not in self._files:
            known = ", ".join(self.names()) or "none"
            _refuse(404, f"there is no LoRA adapter {choice.name!r}; adapters are: {known}", "adapter_not_found")
        return choice.name

    def _allowed_file(self, given: str) -> Path:
        """Judged by where links lead, and before anything is said about what is there."""
        path = Path(given).resolve()
        if not self._is_allowed(path):
            where = f"below {', '.join(map(str, self._allowed))}" if self._allowed else "by name only"
            _refuse(403, f"adapters are taken {where} (--lora-dir)", "path_not_allowed")
        try:
            file = find_weights(path).resolve()
        except ValueError as error:
            _refuse(404, str(error), "adapter_not_found")
        if not self._is_allowed(file):
            _refuse(403, "the adapter's file is a link out of the allowed directories", "path_not_allowed")
        return file

    def _is_allowed(self, path: Path) -> bool:
        return any(path.is_relative_to(allowed) for allowed in self._allowed)

    @staticmethod
    def mixable(blends: Sequence[Blend], most: int) -> bool:
        """Whether one batch can have these, one for each row.

        None has two adapters, an adapter has one weight, and they are `most` at most.
        """
        parts = {part for blend in blends for part in blend}
        single = all(len(blend) <= 1 for blend in blends)
        return single and len(parts) <= most and len({part.source for part in parts}) == len(parts)

    @contextmanager
    def active(self, blends: Sequence[Blend]) -> Iterator[None]:
        """The adapters of the one pipeline call that is made within: a blend for each of its rows.

        Raises:
            EngineError: 404, an adapter was unloaded meanwhile; 400, a file is broken or does not fit the model.
        """
        with self._lock:
            needed = frozenset(part.source for blend in blends for part in blend)
            for source in sorted(needed):
                self._ensure(source, needed)
            with self._weights.active(blends):
                yield

    def _ensure(self, source: str, needed: frozenset[str]) -> None:
        file = self._files.get(source)
        if file is None:
            if not Path(source).is_absolute():
                _refuse(404, f"the LoRA adapter {source!r} was unloaded", "adapter_not_found")
            file = Path(source)
        try:
            self._weights.load(source, file, needed)
        except ValueError as error:
            _refuse(400, str(error), "invalid_value")

    # ------------------------------------------------------------------------------------------------ while it runs

    def load(self, adapter: Adapter, replace: bool = False) -> None:
        """Load one under a name, in place of one of the same name if `replace` is true.

        Raises:
            EngineError: 400, there is no adapter at its path, it does not fit, or the name is that of another one.
        """
        with self._lock:
            if not replace and self._routed.get(adapter.name) == adapter:
                return
            if not self._possible:
                _refuse(400, f"{self._class} takes no LoRA adapters", "invalid_value", "lora_name")
            if adapter.name in self._fixed or (adapter.name in self._routed and not replace):
                _refuse(400, f"there is a LoRA adapter {adapter.name!r} already", "invalid_value", "lora_name")
            self._weights.drop(adapter.name)
            try:
                file = find_weights(Path(adapter.path))
                self._weights.load(adapter.name, file)
            except ValueError as error:  # one of the same name is loaded again when it is next needed
                _refuse(400, str(error), "invalid_value", "lora_path")
            self._files[adapter.name] = file
            self._routed[adapter.name] = adapter

    def unload(self, name: str) -> None:
        """Forget one that was loaded by name while the engine ran, and free its weights.

        Raises:
            EngineError: 404, there is none.
        """
        with self._lock:
            if name not in self._routed:
                _refuse(404, f"no LoRA adapter {name!r} is loaded", "adapter_not_found", "lora_name")
            del self._routed[name], self._files[name]
            self._weights.drop(name)

    def sync(self, wanted: list[Adapter]) -> None:
        """Follow the master's list: load what is missing, unload what it has dropped since the last time.

        One that cannot be loaded costs the others nothing.
        """
        dropped = {adapter.name for adapter in self._listed} - {adapter.name for adapter in wanted}
        self._listed = wanted
        for name in dropped & self._routed.keys():
            self.unload(name)
        for adapter in wanted:
            try:
                self.load(adapter, replace=self._routed.get(adapter.name, adapter) != adapter)
            except EngineError as error:
                logger.error("LoRA adapter %r: %s", adapter.name, error)


def _directory(given: str) -> Path:
    path = Path(given).expanduser().resolve()
    if not path.is_dir():
        raise ValueError(f"--lora-dir: there is no directory {path}")
    return path


def _refuse(status: int, message: str, code: str | None = None, param: str = "lora") -> NoReturn:
    raise EngineError(Failed(status, message, default_type(status), param, code))
