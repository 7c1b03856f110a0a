"""Who may join, and what those are told that may not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app import __version__
from app.cluster import messages as m
from app.cluster.joining import objection
from app.settings.engines import engine_of
from app.settings.schema import StageConfig, stage_digest

STAGE = StageConfig(
    stage_id=1, name="text", kind="llm", model="/here/model", source="org/model", engine_args={"enforce_eager": True}
)
NAMES = ["a", "b"]


def register(**changes: Any) -> m.Register:
    base = m.Register(
        m.PROTOCOL,
        __version__,
        "org/model",
        1,
        -1,
        stage_digest(STAGE),
        "tcp://10.0.0.1:9",
        "there",
        1,
        engine_of(STAGE),
    )
    return msgspec.structs.replace(base, **{"names": NAMES, **changes})


def test_who_runs_the_same_is_welcome() -> None:
    assert objection(register(), STAGE, [0, 1], NAMES) == ""
    assert objection(register(engine=""), STAGE, [0, 1], NAMES) == "", "it does not know"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": 1}, "protocol 1"),
        ({"version": "0.0.1"}, "it runs omni-app 0.0.1"),
        ({"model": "org/other"}, "the model 'org/other', the master with 'org/model'"),
        ({"config_digest": "x"}, "its configuration of stage 1 (text) differs from the master's"),
        ({"names": ["a"]}, "it serves stage 1 (text) as a, the master as a, b: give both the same --served-model-name"),
        ({"engine": "vllm 0.1.0"}, "stage 1 (text) runs on vllm 0.1.0 there and on vllm 0."),
    ],
)
def test_who_runs_something_else_is_told_what(changes: dict[str, Any], words: str) -> None:
    assert words in objection(register(**changes), STAGE, [0, 1], NAMES)


def test_a_stage_that_is_none() -> None:
    assert (
        objection(register(stage_id=5), None, [0, 1], NAMES) == "there is no stage 5; this pipeline has stages [0, 1]"
    )


def test_hosts_may_differ_in_what_files_leave_to_the_kind_of_device() -> None:
    """A server without a GPU has stages on hosts with one."""
    here = msgspec.structs.replace(STAGE, per_platform=["enforce_eager"])
    there = msgspec.structs.replace(here, engine_args={"enforce_eager": False})
    assert objection(register(config_digest=stage_digest(there)), here, [1], NAMES) == ""
    there = msgspec.structs.replace(STAGE, engine_args={"enforce_eager": False})
    assert objection(register(config_digest=stage_digest(there)), STAGE, [1], NAMES) != ""
