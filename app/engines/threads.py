"""How many threads torch computes with, on threads that an engine starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def same_number_of_threads() -> Callable[[], None] | None:
    """For new threads: torch would compute there with as many as there are cores, whatever was set elsewhere."""
    if (torch := sys.modules.get("torch")) is None:
        return None
    count = torch.get_num_threads()
    return lambda: torch.set_num_threads(count)


def all_cores_but_one() -> str:
    """OMP_NUM_THREADS of a stage that shares a CPU with others, where the user has set none.

    With a thread on every core the stages take turns in the middle of each sum: an omni model gives 0.6 times the
    answers (bench/omni.py, two cores).
    """
    return str(max(1, len(os.sched_getaffinity(0)) - 1))
