"""torch computes on an engine's threads with as many as elsewhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from app.engines.threads import same_number_of_threads


def test_new_threads_have_the_number_that_was_set() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1, initializer=same_number_of_threads()) as threads:
            assert threads.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)
