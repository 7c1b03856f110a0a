"""One real talker for the tests of this folder: Qwen2.5-Omni's, tiny."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.engines.omni.talker.engine import TalkerEngine
from app.settings.schema import StageConfig
from tests.tiny_omni import build


def talker_stage(model: Path, **fields: object) -> StageConfig:
    """A stage with the model; float32, so that what is said does not depend on who shares the batch."""
    arguments = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 32, "kv_cache_memory_bytes": 64 << 20}
    return StageConfig(
        stage_id=1,
        name="talker",
        kind="llm",
        model_stage="talker",
        model=str(model),
        engine_args=arguments,
        **fields,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen2_5_omni", tmp_path_factory.mktemp("omni"))


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def talker(checkpoint: Path) -> AsyncIterator[TalkerEngine]:
    engine = TalkerEngine(talker_stage(checkpoint, default_sampling_params={"temperature": 0, "max_tokens": 12}), ["t"])
    capabilities = await engine.start()
    assert (capabilities.tasks, capabilities.output_modalities, capabilities.slots) == (["talk"], [], 32)
    yield engine
    await engine.stop()
