"""Tiny pipelines for all tests of this folder, written once a session and only where a test asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tiny_diffusion


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Two threads on two shared cores make a step many times slower, and the number of threads changes bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_pipelines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_pipelines(kind)`: the directory of that kind, for reading only."""
    root = tmp_path_factory.mktemp("tiny")
    return cache(lambda kind: tiny_diffusion.build(kind, root / kind))


@pytest.fixture
def tiny_pipeline(tiny_pipelines: Callable[[str], Path]) -> Callable[[str], Any]:
    """`tiny_pipeline(kind)`: a fresh pipeline object of that kind as diffusers itself loads it, silent, in float32."""

    def load(kind: str) -> Any:
        return tiny_diffusion.open_pipeline(tiny_pipelines(kind))

    return load
