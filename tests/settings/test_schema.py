"""The digest that replicas of one stage compare: what must be equal on all hosts, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.settings.schema import StageConfig, stage_digest

STAGE = StageConfig(stage_id=0, name="llm", kind="llm", model="org/model", engine_args={"dtype": "float32", "seed": 1})


def changed(**fields: Any) -> StageConfig:
    return msgspec.structs.replace(STAGE, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"devices": "1"},
        {"num_replicas": 3},
        {"lb_policy": "random"},
        {"max_queue": 5},
        {"shm_threshold_bytes": 5},
        {"env": {"A": "b"}},
        {"sources": [1], "async_chunk": False, "input_timeout_s": 3.0, "prompt_template": "{prompt}"},
    ],
    ids=str,
)
def test_what_a_host_decides_for_itself_does_not_count(fields: dict[str, Any]) -> None:
    assert stage_digest(changed(**fields)) == stage_digest(STAGE)


@pytest.mark.parametrize(
    "fields", [{"model": "org/other"}, {"engine_args": {"dtype": "float16", "seed": 1}}, {"kind": "stub"}], ids=str
)
def test_what_changes_answers_counts(fields: dict[str, Any]) -> None:
    assert stage_digest(changed(**fields)) != stage_digest(STAGE)


def test_an_argument_that_became_a_directory_counts_as_it_was_named() -> None:
    named = changed(engine_args={**STAGE.engine_args, "vocoder": "org/vocoder"})
    here, there = (
        msgspec.structs.replace(
            named,
            engine_args={**STAGE.engine_args, "vocoder": directory},
            argument_sources={"vocoder": "org/vocoder"},
        )
        for directory in ("/here/vocoder", "/there/vocoder")
    )
    assert stage_digest(here) == stage_digest(there) == stage_digest(named) != stage_digest(STAGE)


def test_the_order_of_arguments_does_not_count() -> None:
    assert stage_digest(changed(engine_args={"seed": 1, "dtype": "float32"})) == stage_digest(STAGE)


def test_what_a_file_leaves_to_the_kind_of_device_does_not_count() -> None:
    here, there = (
        changed(engine_args={"dtype": x, "seed": 1}, per_platform=["dtype"]) for x in ("float32", "bfloat16")
    )
    assert stage_digest(here) == stage_digest(there)
    assert stage_digest(changed(engine_args={"dtype": "float32", "seed": 2}, per_platform=["dtype"])) != stage_digest(
        here
    )
