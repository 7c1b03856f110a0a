"""Tiny checkpoints for the tests of this folder, made once and only where a test asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from app.engines.omni.code2wav.engine import Code2WavEngine
from tests.engines.omni.code2wav.decoding import stage
from tests.tiny_omni import build


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Two threads on two shared cores make a step many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def qwen2_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen2_5_omni", tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="package")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen3_omni_moe", tmp_path_factory.mktemp("omni"))


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shared(qwen2_5: Path) -> AsyncIterator[Code2WavEngine]:
    """Qwen2.5-Omni's, which no request changes."""
    engine = Code2WavEngine(stage(qwen2_5))
    await engine.start()
    yield engine
    await engine.stop()
