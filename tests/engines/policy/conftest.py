"""A tiny policy that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_policy import build


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def raw_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that has no statistics of a robot."""
    return build(tmp_path_factory.mktemp("raw-policy"), normalized=False)
