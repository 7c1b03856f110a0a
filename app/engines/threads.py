"""How many threads torch computes with, on threads that an engine starts."""

from __future__ import annotations

import sys
from collections.abc import Callable


def same_number_of_threads() -> Callable[[], None] | None:
    """For new threads: torch would compute there with as many as there are cores, whatever was set elsewhere."""
    if (torch := sys.modules.get("torch")) is None:
        return None
    count = torch.get_num_threads()
    return lambda: torch.set_num_threads(count)
