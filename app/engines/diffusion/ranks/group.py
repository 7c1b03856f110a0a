"""The other ranks of a replica, as rank 0 sees them: started, told what to do, and never outlived.

Every rank has the whole pipeline, or its shards of it, and makes every call with the same arguments and noise. What a
call needs goes down a pipe to each rank; the ranks' tensors go through torch.distributed. A rank that dies leaves the
others waiting in the middle of a call, so the group ends as a whole, and the replica with it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from app.cluster.local import describe_exit
from app.cluster.process import python_command
from app.engines.diffusion.layout import Layout
from app.settings.schema import LogConfig, StageConfig

SETTLE_S = 5.0
"""What the other ranks get to report the end of a call in which rank 0 has failed."""
_STOP_S = 3.0


class GroupEndedError(RuntimeError):
    """A rank has ended; str() says which and how."""


class RankSpec(msgspec.Struct):
    """What a rank is started with: one line of JSON on its standard input. `command` and `meeting` are where it is told
    what to do (a descriptor) and where the ranks find each other (a file)."""

    stage: StageConfig
    rank: int
    parent_pid: int
    command: int
    meeting: str
    log: LogConfig


class Group:
    """Used by who has the `turn`; `broken`, why it cannot go on, may be read by anybody."""

    def __init__(self, stage: StageConfig, layout: Layout, scratch: Path, log: LogConfig) -> None:
        """Start the other ranks; they load the model while this one does."""
        self.meeting = scratch / f"ranks-{os.getpid()}-{time.monotonic_ns()}"
        self.broken = ""
        self.on_broken: Callable[[], None] = lambda: None
        self._stopping = False
        self.turn = threading.Lock()
        self._pipes: list[Connection[Any, Any]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(1, layout.world):
                self._start(stage, rank, log)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def _start(self, stage: StageConfig, rank: int, log: LogConfig) -> None:
        ours, theirs = Pipe()
        try:
            process = subprocess.Popen(
                python_command("app.engines.diffusion.ranks.member"),
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        finally:
            descriptor = theirs.fileno()
            theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)
        spec = RankSpec(stage, rank, os.getpid(), descriptor, str(self.meeting), log)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()

    def _watch(self) -> None:
        """Notice the first end of a rank."""
        with contextlib.ExitStack() as stack:
            ends = {}
            for rank, process in enumerate(self._processes, 1):
                descriptor = os.pidfd_open(process.pid)
                stack.callback(os.close, descriptor)
                ends[descriptor] = rank
            rank = ends[next(descriptor for descriptor in wait(list(ends)) if isinstance(descriptor, int))]
        if not self._stopping:
            code = self._processes[rank - 1].wait()
            self.broken = f"rank {rank} of the diffusion engine ended ({describe_exit(code)})"
            self.on_broken()

    # ------------------------------------------------------------------------------------------------ telling them

    def tell(self, method: str, *arguments: Any) -> None:
        """Have every other rank call a method of member.Member.

        Raises:
            GroupEndedError: one of them has ended.
        """
        data = pickle.dumps((method, arguments))
        for pipe in self._pipes:
            try:
                pipe.send_bytes(data)
            except OSError as error:
                raise GroupEndedError(self.broken or f"a rank cannot be told anything: {error}") from error

    def settle(self, limit_s: float | None = None) -> list[str]:
        """What each has to say of the last `tell`: "" or how it failed; at most `limit_s` seconds.

        Raises:
            GroupEndedError: one of them has ended, or says nothing in time.
        """
        end = None if limit_s is None else time.monotonic() + limit_s
        said = []
        for pipe in self._pipes:
            try:
                if end is not None and not pipe.poll(max(0.0, end - time.monotonic())):
                    self.broken = self.broken or "the ranks of a diffusion engine lost each other in a call that failed"
                    raise GroupEndedError(self.broken)
                said.append(str(pipe.recv()))
            except (EOFError, OSError) as error:
                raise GroupEndedError(self.broken or "a rank of the diffusion engine has ended") from error
        return said

    def check(self) -> None:
        """
        Raises:
            GroupEndedError: a rank has ended.
        """
        if self.broken:
            raise GroupEndedError(self.broken)

    def close(self) -> None:
        """End the other ranks, and leave them."""
        self._stopping = True
        if dist.is_initialized():
            dist.destroy_process_group()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        end = time.monotonic() + (_STOP_S if not self.broken else 0.0)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            process.kill()
            process.wait()
        self.meeting.unlink(missing_ok=True)


@contextlib.contextmanager
def together(group: Group | None, method: str, *arguments: Any) -> Iterator[None]:
    """What is done within is done by every other rank as well, by `method` of theirs; nothing more without a group.

    Raises:
        GroupEndedError: a rank has ended, has failed alone, or is stuck where this one has failed.
    """
    if group is None:
        yield
        return
    with group.turn:
        group.check()
        group.tell(method, *arguments)
        try:
            yield
        except BaseException:
            group.settle(SETTLE_S)
            raise
        _agree(group, group.settle())


def _agree(group: Group, said: Sequence[str]) -> None:
    """This rank has succeeded; one that has not is in another state from now on."""
    if failure := next(filter(None, said), ""):
        group.broken = f"a rank of the diffusion engine failed alone: {failure}"
        raise GroupEndedError(group.broken)
