"""One call of a model at a time: seeded, watched, and out of memory in words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.engines.base import EngineError
from app.engines.speech.family import AbandonedError
from app.engines.speech.torchmodel import Caller


def test_equal_seeds_draw_equal_numbers() -> None:
    caller = Caller()
    drawn = [caller.call(lambda: torch.randn(1, 3), seed, lambda: None) for seed in (1, 2, 1)]
    assert drawn[0].dtype == np.float32
    assert drawn[0].shape == (3,)
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert not np.array_equal(drawn[0], drawn[1])


def test_nothing_said_is_no_samples() -> None:
    assert Caller().call(lambda: None, 0, lambda: None).shape == (0,)


def test_every_call_of_a_module_is_a_step_and_a_way_out() -> None:
    module, steps = torch.nn.Identity(), []
    caller = Caller(module)

    def twice() -> torch.Tensor:
        return torch.as_tensor(module(module(torch.zeros(1))))

    caller.call(twice, 0, lambda: steps.append(1))
    assert len(steps) == 3  # the first is the call itself

    def leave() -> None:
        steps.append(1)
        if len(steps) == 5:
            raise AbandonedError

    with pytest.raises(AbandonedError):
        caller.call(twice, 0, leave)
    module(torch.zeros(1))  # outside of a call nobody is asked
    assert len(steps) == 5


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_memory_that_is_short_is_told(error: Exception) -> None:
    def full() -> torch.Tensor:
        raise error

    with pytest.raises(EngineError, match="too little memory") as caught:
        Caller().call(full, 0, lambda: None)
    assert (caught.value.failed.status, caught.value.failed.code) == (503, "out_of_memory")


def test_other_errors_pass() -> None:
    def broken() -> torch.Tensor:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        Caller().call(broken, 0, lambda: None)
