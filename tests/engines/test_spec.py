"""The file between a parent and its replica."""

from __future__ import annotations

from pathlib import Path

import msgspec

from app.engines.spec import EXIT_FAILED, EXIT_REFUSED, ReplicaSpec
from app.settings.schema import stage_digest
from tests.clusters import replica_spec, settings


def test_it_comes_back_equal_and_keeps_the_digest_of_its_stage(tmp_path: Path) -> None:
    spec = replica_spec(tmp_path, settings(token_s=0.5, slots=3))
    again = msgspec.json.decode(msgspec.json.encode(spec), type=ReplicaSpec)
    assert again == spec
    assert stage_digest(again.stage) == stage_digest(spec.stage)


def test_a_refusal_is_told_from_a_failure() -> None:
    assert len({0, EXIT_FAILED, EXIT_REFUSED}) == 3
