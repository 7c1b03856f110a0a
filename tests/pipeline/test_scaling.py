"""What cannot be scaled, and what its administrator is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.pipeline.orchestrator import Orchestrator
from app.pipeline.scaling import scale
from app.protocol.errors import ApiError
from app.protocol.status import ScaleRequest
from app.settings.schema import Settings, StageConfig
from tests.clusters import settings


@pytest.fixture
def config() -> Settings:
    made = settings()
    made.stages = [
        StageConfig(stage_id=0, name="own", kind="llm", model="m", devices="0,1", num_replicas=2),
        StageConfig(stage_id=1, name="elsewhere", kind="llm", model="m"),
    ]
    made.master.stage_id = 0
    return made


@pytest.fixture
def orchestrator(config: Settings) -> Iterator[Orchestrator]:
    """Its master is silent: what is told to it would be waited for."""
    made = Orchestrator(config, "ipc:///nowhere/registry.sock")
    yield made
    made.discard()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (ScaleRequest("other", 2), "stage: there is no stage 'other'; the stages are 0 (own), 1 (elsewhere)"),
        (ScaleRequest(1, 2), "stage: stage 1 (elsewhere) runs on other hosts: start or stop `omni-app headless` there"),
        (ScaleRequest("own", 3), "devices: stage own has devices for 2 replicas (0,1): name those of the new ones"),
        (ScaleRequest(0, 3, "2,3"), "devices: 1 replicas are added, of 1 devices each; got 2,3"),
        (ScaleRequest(0, 1, "2"), "devices: 0 replicas are added"),
        (ScaleRequest(0, 4, "2,2"), "devices: names a device twice"),
        (ScaleRequest("own", 3, "1"), "devices: stage own has 1 already (0,1); name others"),
        (ScaleRequest(0, 4, "two"), "devices: expected device numbers"),
    ],
)
async def test_what_cannot_be(orchestrator: Orchestrator, config: Settings, asked: ScaleRequest, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        await scale(orchestrator, config, asked)
    assert caught.value.status == 400
    assert words in caught.value.body.error.message
