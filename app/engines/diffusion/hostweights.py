"""A copy of a checkpoint in a directory that processes share, such as one in memory (--host-weight-runtime-root)."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from app.cluster.locks import Lock
from app.engines.diffusion.options import DiffusionOptions

logger = logging.getLogger("app.diffusion")

_POLL_S = 0.1


def kept(options: DiffusionOptions, model: str) -> str:
    """Where to load `model` from, a directory or file: its copy, made by whoever comes first, or `model` itself."""
    if options.host_weight_runtime_mode == "disabled":
        return model
    original, root = Path(model), Path(options.host_weight_runtime_root).expanduser()
    try:
        return str(_copy(original, root))
    except OSError as error:
        logger.warning("--host-weight-runtime-mode: %s; the weights are loaded from %s", error, model)
        return model


def _copy(original: Path, root: Path) -> Path:
    """A copy has a name of its own for each state of the original; nobody sees it before it is whole.

    Raises:
        OSError: there is no room, or a file cannot be read or written.
    """
    files = sorted(_files(original))
    state = hashlib.sha256(repr((str(original.resolve()), files)).encode()).hexdigest()[:16]
    target = root / state / original.name
    root.mkdir(parents=True, exist_ok=True)
    lock = Lock(root / f"{state}.lock")
    try:
        while not lock.try_exclusive():
            time.sleep(_POLL_S)
        if target.exists():
            logger.info("the weights are loaded from their copy at %s", target)
            return target
        size = sum(size for _, size, _ in files)
        if (free := shutil.disk_usage(root).free) < size:
            raise OSError(f"{root} has {free} bytes free, and a copy of {original} needs {size}")
        partial = root / f"{state}.partial"
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed while it copied
        partial.mkdir()
        if original.is_file():
            shutil.copy(original, partial / original.name)
        else:
            shutil.copytree(original, partial / original.name)
        partial.rename(target.parent)
        logger.info("the weights are loaded from %s, where they have been copied", target)
        return target
    finally:
        lock.close()


def _files(original: Path) -> Iterator[tuple[str, int, int]]:
    for file in (original,) if original.is_file() else original.rglob("*"):
        if file.is_file():
            found = file.stat()
            yield str(file.relative_to(original.parent)), found.st_size, found.st_mtime_ns
