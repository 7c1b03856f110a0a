"""Speech models for all tests of this folder, made once a session and only where a test asks for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from app.engines.speech.engine import SpeechEngine
from tests import tiny_speech
from tests.engines.speech.asking import stage


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Two threads on two shared cores make a step many times slower, and the number of threads changes bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_voices(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_voices(kind)`: the directory of that model, for reading only."""
    root = tmp_path_factory.mktemp("speech")
    return cache(lambda kind: tiny_speech.build(kind, root / kind))


@pytest.fixture(scope="session")
def demo() -> Iterator[SpeechEngine]:
    """The demo's voice, which speaks one sentence at a time. It takes seconds to load, and no request changes it."""
    engine = SpeechEngine(stage(max_num_seqs=1))
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.stop())
