"""The run directory: what the processes of one server agree on, kept in files and locks. Standard library only.

* leases: every API worker holds a shared lock for life; nobody holding one means nobody needs the master
* boot.lock: held by the worker that is electing itself
* master.lock: held exclusively by the master for life; the kernel drops it however the master dies
* owner: the server that this directory belongs to
* state.json: how far the master is
* settings.json: the resolved settings, private to the user
* *.sock: ZeroMQ sockets of the registry and of the local replicas
* generated/: files that wait to be fetched
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from app.cluster.identity import Server, current_server
from app.cluster.locks import Lock, is_locked

Phase = Literal["", "spawning", "starting", "ready", "failed", "exited"]

SOCKET_PATH_LIMIT = 107
LONGEST_SOCKET_NAME = len("r000-000.sock")


class StartupError(RuntimeError):
    """Start-up failed; str() is one clear line for the user."""


@dataclass(frozen=True)
class State:
    """How far the master is. `restarts` counts the masters that died while they served; `detail` is for people."""

    phase: Phase = ""
    pid: int = 0
    error: str = ""
    restarts: int = 0
    detail: str = ""


@dataclass(frozen=True)
class RunDir:
    """One server's run directory for one mount of the application."""

    path: Path
    server: Server

    @classmethod
    def locate(cls, mount: str) -> RunDir:
        """Where the run directory of this server's `mount` is; nothing is created.

        Raises:
            StartupError: the path is too long for a Unix socket.
        """
        server = current_server()
        if chosen := os.environ.get("OMNI_RUN_DIR"):
            path = Path(chosen).absolute() / mount
        else:
            path = _base() / f"{server.pid}-{server.ticks}-{server.digest(mount)}"
        if len(os.fsencode(path)) + 1 + LONGEST_SOCKET_NAME > SOCKET_PATH_LIMIT:
            raise StartupError(f"the run directory {path} is too long for Unix sockets; set OMNI_RUN_DIR")
        return cls(path, server)

    @property
    def leases(self) -> Path:
        return self.path / "leases"

    @property
    def boot_lock(self) -> Path:
        return self.path / "boot.lock"

    @property
    def master_lock(self) -> Path:
        return self.path / "master.lock"

    @property
    def owner_file(self) -> Path:
        return self.path / "owner"

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def settings_file(self) -> Path:
        return self.path / "settings.json"

    @property
    def registry(self) -> str:
        """ZeroMQ address of the registry for processes of this host."""
        return f"ipc://{self.path}/registry.sock"

    def create(self) -> None:
        """Make the directory, private to this user.

        Raises:
            StartupError: it, or the directory around it, is not ours alone.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StartupError(f"cannot create the run directory {self.path}: {error.strerror}") from error
        _require_private(self.path)
        if "OMNI_RUN_DIR" not in os.environ:
            _require_private(self.path.parent)

    def read_state(self) -> State:
        """The last state written; an empty one if there is none."""
        try:
            return State(**json.loads(self.state_file.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return State()

    def write_state(self, state: State) -> None:
        """Replace the state atomically."""
        self._replace(self.state_file, json.dumps(asdict(state)).encode())

    def state_touched(self) -> float:
        """When the state was last written or touched, by the clock of the file system; 0 if there is none."""
        try:
            return self.state_file.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def touch_state(self) -> None:
        """Sign of life of a master."""
        with suppress(FileNotFoundError):
            os.utime(self.state_file)

    def raise_failure(self) -> None:
        """Raise the recorded start-up failure of this server, if there is one: it would only fail again.

        Raises:
            StartupError: the failure, in the words of whoever recorded it.
        """
        state = self.read_state()
        if state.phase == "failed" and self.is_owned():
            raise StartupError(state.error)

    def is_owned(self) -> bool:
        """Whether the directory belongs to this server (or to nobody yet)."""
        try:
            return self.owner_file.read_text() == self._owner_mark()
        except (FileNotFoundError, NotADirectoryError):
            return True

    def other_owner(self) -> Server | None:
        """The server in the owner file if it is another one, alive or not."""
        if self.is_owned():
            return None
        pid, ticks, _ = self.owner_file.read_text().split()
        return Server(int(pid), int(ticks))

    def take(self) -> None:
        """Empty the directory of a dead server and write our name on it. The caller holds all its locks."""
        for entry in self.path.iterdir():
            if entry in (self.leases, self.boot_lock, self.master_lock):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self.mark_owned()

    def mark_owned(self) -> None:
        """Write our name on the directory."""
        self._replace(self.owner_file, self._owner_mark().encode())

    def write_settings(self, encoded: bytes) -> bytes:
        """Store the settings unless another worker already has; returns what is stored."""
        draft = self._draft("settings", encoded)
        with suppress(FileExistsError):
            os.link(draft, self.settings_file)
        draft.unlink()
        return self.settings_file.read_bytes()

    def read_settings(self) -> bytes | None:
        """The stored settings of this server, if any."""
        try:
            return self.settings_file.read_bytes() if self.is_owned() else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def master_alive(self) -> bool:
        """Whether a master holds its lock."""
        return is_locked(self.master_lock)

    def remove(self) -> None:
        """Remove the directory. The caller holds the leases exclusively, or knows that the server is gone.

        It is renamed first, so that a newcomer sees all of it or nothing.
        """
        gone = self.path.with_name(f"{self.path.name}.gone{os.getpid()}")
        with suppress(FileNotFoundError):
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _owner_mark(self) -> str:
        return f"{self.server.pid} {self.server.ticks} {self.server.digest('')}"

    def _replace(self, path: Path, content: bytes) -> None:
        os.replace(self._draft(path.name, content), path)

    def _draft(self, name: str, content: bytes) -> Path:
        handle, draft = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
        with open(handle, "wb") as file:
            file.write(content)
        return Path(draft)


def sweep() -> None:
    """Remove what servers that no longer run have left in the default place (after a kill -9 of everything)."""
    base = _base()
    if not base.is_dir():
        return
    for path in base.iterdir():
        with suppress(OSError, ValueError):
            pid, ticks, _ = path.name.split("-")
            _remove_stale(RunDir(path, Server(int(pid), int(ticks))))


def _remove_stale(run_dir: RunDir) -> None:
    if run_dir.server.alive:
        return
    master, leases = Lock(run_dir.master_lock), Lock(run_dir.leases)
    try:
        # A server in another pid namespace looks dead from here, but its locks are held.
        if master.try_exclusive() and leases.try_exclusive():
            run_dir.remove()
    finally:
        master.close()
        leases.close()


def _base() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    root = runtime if runtime and os.access(runtime, os.W_OK) else tempfile.gettempdir()
    return Path(root) / f"omni-{os.getuid()}"


def _require_private(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StartupError(f"{path} is not a directory of user {os.getuid()}; remove it or set OMNI_RUN_DIR")
    if status.st_mode & 0o077:
        path.chmod(0o700)
