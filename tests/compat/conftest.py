"""Servers that several files of this folder share: each starts once a session, when the first test asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.compat.negative import LIMIT
from tests.servers import Server, start_server


@pytest.fixture(scope="session")
def speaking_stub() -> Iterator[Server]:
    """Two API workers and a stub that only speaks."""
    env = {
        "OMNI_MODEL": "stub",
        "OMNI_STAGE_OVERRIDES": json.dumps({"0": {"engine_args": {"chats": False, "speaks": True}}}),
        "OMNI_MAX_BODY_BYTES": str(LIMIT),
        "GRANIAN_WORKERS": "2",
    }
    with start_server(env=env) as server:
        yield server.wait_ready(60)


@pytest.fixture(scope="session")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two API workers and the voice of the demo, without the language model in front of it."""
    deploy = tmp_path_factory.mktemp("voice") / "voice.yaml"
    deploy.write_text("pipeline: custom\nstages: [{stage_id: 0, name: speech, kind: speech, model: demo}]\n")
    line = ("omni-app", "serve", "demo", "--port", "{port}", "--workers", "2", "--deploy-config", str(deploy))
    with start_server(line) as server:
        yield server.wait_ready(60)
