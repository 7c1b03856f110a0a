"""vLLM's general plugin: vLLM calls `register` in every process that it starts, forked or spawned.

A replica that is killed with SIGKILL cannot stop its EngineCore, and vLLM would let it run on with its memory. So each
child asks the kernel to be killed when its parent dies.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

from app.engines.omni import torchvisionless

_PR_SET_PDEATHSIG = 1
_protected_replica = 0
_MODELS = {
    "Qwen2_5OmniTalker": "app.engines.omni.talker.qwen2_5_model:Qwen2_5OmniTalker",
    "Qwen3OmniTalker": "app.engines.omni.talker.qwen3_model:Qwen3OmniTalker",
}
"""Models of ours by architecture; vLLM imports the one that it runs."""
_libc = ctypes.CDLL(None, use_errno=True)  # loaded here: after a fork only async-signal-safe work is certain


def register() -> None:
    """Entry point `vllm.general_plugins`: our models are known; a child of multiprocessing dies with its parent."""
    torchvisionless.stand_in()
    from vllm import ModelRegistry

    for architecture, model in (_MODELS | torchvisionless.models()).items():
        if not hasattr(ModelRegistry.models.get(architecture), "model_cls"):  # else it is imported, which takes seconds
            ModelRegistry.models.pop(architecture, None)  # vLLM would warn of a replaced one
            ModelRegistry.register_model(architecture, model)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        _die_with(parent.pid)


def protect_children() -> None:
    """Bind the life of every process forked from now on to ours, and cut it off from our event loop's signals.

    The kernel watches the *thread* that forks: it must live as long as the children shall.
    """
    global _protected_replica
    if _protected_replica == 0:
        os.register_at_fork(after_in_child=_after_fork)
    _protected_replica = os.getpid()


def _after_fork() -> None:
    # asyncio's signal pipe is shared with the parent: a SIGTERM to the child would be taken for one to the replica.
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    parent = os.getppid()
    if parent == _protected_replica or multiprocessing.parent_process() is not None:
        _die_with(parent)
    else:
        os._exit(1)


def _die_with(parent_pid: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
