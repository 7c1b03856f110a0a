"""Every connector of vllm-omni by its name: what runs, and what is told of the others."""

from __future__ import annotations

import pytest

from app.settings.deploykeys import OTHER_CONNECTORS, SHARED_MEMORY, refusal
from app.settings.stagefields import check_stage


def test_shared_memory_runs() -> None:
    assert refusal("connectors", {"a": {"name": SHARED_MEMORY, "extra": {"codec_chunk_frames": 25}}}) == ""


@pytest.mark.parametrize("name", OTHER_CONNECTORS)
def test_another_one_is_refused_with_what_it_needs_and_what_works(name: str) -> None:
    told = refusal("connectors", {"fast": {"name": name, "extra": {"protocol": "rdma"}}})
    assert told.startswith(f"fast: {name} is not here: it needs {OTHER_CONNECTORS[name]}; ")
    assert "straight from replica to replica over TCP" in told


def test_a_slip_of_the_pen_is_told() -> None:
    told = refusal("connectors", {"a": {"name": "SharedMemoryConector"}})
    assert told.startswith(f"a: there is no connector SharedMemoryConector (did you mean {SHARED_MEMORY}?)")


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("is_prefill_only", "num_replicas, with lb_policy: session-affinity"),
        ("is_decode_only", "num_replicas, with lb_policy: session-affinity"),
        ("omni_kv_config", "sources and prompt_template of the picture stage"),
    ],
)
def test_what_hands_caches_over_is_refused(key: str, instead: str) -> None:
    problems: list[str] = []
    checked = check_stage({key: True}, "x.yaml: stages[0]", problems)
    assert problems == []
    [told] = checked.refused
    assert told.startswith(f"x.yaml: stages[0].{key}: ")
    assert instead in told
