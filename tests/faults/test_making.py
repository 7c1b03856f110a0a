"""Who makes a picture or a video is killed amid it. `make soak` plays each five times."""

from __future__ import annotations

from pathlib import Path

from tests import tiny_diffusion
from tests.faults import films, ranks


def test_a_rank_is_killed_amid_a_picture(tmp_path: Path) -> None:
    ranks.killed_amid(tiny_diffusion.build("sd", tmp_path / "sd"), 1)


def test_the_replica_is_killed_amid_a_video(tmp_path: Path) -> None:
    films.killed_amid(tiny_diffusion.build("wan", tmp_path / "wan"), 1)
