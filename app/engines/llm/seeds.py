"""Seeds on a CPU: vLLM takes back what a prompt has drawn that is not complete, which it can with a GPU's numbers only.

It samples for every sequence of a step, also where a prompt is computed in several steps, and sets the generator of a
seeded request back then by an offset. A CPU's has none: the attempt ends EngineCore, and all requests with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def install() -> None:
    """Set generators back by their state, in this process and those forked from it."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if "_bookkeeping_sync" in vars(CPUModelRunner):
        return
    sample, keep_books = CPUModelRunner._sample, CPUModelRunner._bookkeeping_sync

    def _sample(runner: Any, *args: Any, **options: Any) -> Any:
        before = [(generator, generator.get_state()) for generator in _incomplete(runner).values()]
        sampled = sample(runner, *args, **options)
        for generator, state in before:
            generator.set_state(state)
        return sampled

    def _bookkeeping_sync(runner: Any, *args: Any, **options: Any) -> Any:
        hidden = _incomplete(runner)
        generators = runner.input_batch.generators
        for index in hidden:
            del generators[index]
        try:
            return keep_books(runner, *args, **options)
        finally:
            generators.update(hidden)

    CPUModelRunner._sample = _sample
    CPUModelRunner._bookkeeping_sync = _bookkeeping_sync


def _incomplete(runner: Any) -> dict[int, torch.Generator]:
    """Generators of the batch's requests, by index, whose prompt goes on in the next step."""
    batch = runner.input_batch
    if not batch.generators:
        return {}
    indices = np.nonzero(runner.discard_request_mask.np[: batch.num_reqs])[0]
    return {int(index): batch.generators[int(index)] for index in indices if int(index) in batch.generators}
