"""The child process that downloads or converts a model: `python -m app.settings.obtain PARENT_PID KIND ARGUMENTS`.

Prints lines of progress, then the model's directory; on failure the reason is the last line on stderr.
"""

from __future__ import annotations

import glob
import io
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from app.cluster.process import signal_on_parent_death
from app.settings.inspection import read_json
from app.settings.snapshot import diffusion_files, language_model_files

_REPORT_S = 1.0
_LIST_S = 10.0
_KNOWN = ["config.json", "model_index.json", "modular_model_index.json"]
"""Files by which a model is known: each that it has is downloaded."""


class ObtainError(Exception):
    """The model cannot be had; str() says why, on one line."""


def main() -> None:
    """Do what the command line says."""
    signal_on_parent_death(signal.SIGKILL)
    parent, kind, *arguments = sys.argv[1:]
    if os.getppid() != int(parent):
        sys.exit("the process that asked for the model is gone")
    try:
        directory = convert_demo(*arguments) if kind == "demo" else download(kind, *arguments)
    except ObtainError as error:
        sys.exit(str(error))
    _say(directory)


def convert_demo(cache: str) -> str:
    """The demo's language model, out of the installed wheel."""
    from app.demo.text import DemoUnavailableError, demo_text_model

    try:
        return str(demo_text_model(Path(cache)))
    except DemoUnavailableError as error:
        raise ObtainError(str(error)) from error


def download(kind: str, repository: str, revision: str, cache: str, variant: str = "") -> str:
    """The snapshot of a hub repository, downloaded or from the hub's cache; honours HF_HUB_OFFLINE and HF_TOKEN.

    `kind` "diffusion" is for models of diffusers, which have `variant`s, "hub" for all others.

    Raises:
        ObtainError: no such model, no permission, or no network and not in the cache.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise ObtainError("huggingface_hub is not installed; pip install 'omni-app[cpu]' or 'omni-app[cuda]'") from None
    where = {"revision": revision or None, "cache_dir": cache or None}
    try:
        try:
            files = _wanted(kind, repository, where, variant)
        except (errors.HTTPError, errors.OfflineModeIsEnabled, OSError) as error:
            return _cached(repository, where, error)
        patterns = [glob.escape(name) for name in files]
        bar = _progress_bar(repository)
        return str(snapshot_download(repository, allow_patterns=patterns, tqdm_class=bar, **where))
    except errors.GatedRepoError:
        raise ObtainError(
            "its owner asks you to accept terms first: do so on its hub page, then set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise ObtainError(f"it has no revision {revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise ObtainError(
            "the hub has no such model, or it is private and HF_TOKEN is not set to a token for it"
        ) from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled, errors.IncompleteSnapshotError, OSError) as error:
        raise ObtainError(_unreachable(repository, error)) from error


def _wanted(kind: str, repository: str, where: dict[str, Any], variant: str) -> list[str]:
    """The files to download, after a look at the list of all."""
    from huggingface_hub import HfApi, hf_hub_download

    siblings = HfApi().model_info(repository, revision=where["revision"], timeout=_LIST_S).siblings or []
    files = [file.rfilename for file in siblings]
    if kind != "diffusion":
        return language_model_files(files)
    components: list[str] = []
    if "model_index.json" in files:
        index = read_json(Path(hf_hub_download(repository, "model_index.json", **where))) or {}
        components = [name for name, value in index.items() if isinstance(value, list) and not name.startswith("_")]
    return diffusion_files(files, components, variant)


def _cached(repository: str, where: dict[str, Any], unreachable: Exception) -> str:
    """What an earlier download has left; which files it took cannot be asked, so that the engine judges.

    Raises:
        Exception: `unreachable`, if there is nothing.
    """
    from huggingface_hub import errors, snapshot_download

    try:
        return str(snapshot_download(repository, allow_patterns=_KNOWN, local_files_only=True, **where))
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError):
        raise unreachable from None


def _unreachable(repository: str, error: Exception) -> str:
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    why = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({type(error).__name__})"
    return f"{why} and the model is not in the cache; for a directory, give its path, such as ./{repository}"


def _progress_bar(repository: str) -> type[Any]:
    """A tqdm that draws nothing, and prints a line a second at most, only for bytes."""
    from tqdm.auto import tqdm

    class Lines(tqdm):  # type: ignore[misc] # tqdm is not followed
        said = 0.0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": False, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            now = time.monotonic()
            if self.unit == "B" and self.total and now - Lines.said >= _REPORT_S:
                Lines.said = now
                _say(f"downloading {repository}: {self.n / 1e6:,.0f} of {self.total / 1e6:,.0f} MB")

        def display(self, *_: Any, **__: Any) -> None:
            return

    return Lines


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
