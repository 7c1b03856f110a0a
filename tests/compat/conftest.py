"""Servers that several files of this folder share: each starts once a session, when the first test asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests import tiny_speech
from tests.compat.negative import LIMIT
from tests.servers import Server, start_server
from tests.tiny_aligner import tiny_aligner


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


SPEAKING_CHATS = """\
pipeline: stub
stages:
  - {stage_id: 0, name: text, kind: stub, engine_args: {hears: true}}
  - stage_id: 1
    name: speech
    kind: stub
    outputs: [audio]
    sources: [text]
    engine_args: {chats: false, speaks: true}
"""


@pytest.fixture(scope="session")
def speaking_chats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two API workers, a stub that chats, and one that speaks what it says."""
    deploy = tmp_path_factory.mktemp("chats") / "chats.yaml"
    deploy.write_text(SPEAKING_CHATS)
    env = {"OMNI_MODEL": "stub", "OMNI_DEPLOY_CONFIG": str(deploy), "GRANIAN_WORKERS": "2"}
    with start_server(env=env) as server:
        yield server.wait_ready(60)


@pytest.fixture(scope="session")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two API workers and the voice of the demo, without the language model in front of it; its words can be timed."""
    deploy = tmp_path_factory.mktemp("voice") / "voice.yaml"
    deploy.write_text("pipeline: custom\nstages: [{stage_id: 0, name: speech, kind: speech, model: demo}]\n")
    sizes = deploy.with_name("aligner.yaml")
    sizes.write_text(
        f"model: {tiny_aligner()}\nmax_model_len: 1024\nkv_cache_memory_bytes: 67108864\nmax_num_seqs: 8\n"
    )
    line = ("omni-app", "serve", "demo", "--port", "{port}", "--workers", "2", "--deploy-config", str(deploy))
    with start_server((*line, "--forced-aligner-config", str(sizes))) as server:
        yield server.wait_ready(120)


@pytest.fixture(scope="session")
def demo() -> Iterator[Server]:
    """`omni-app serve demo`: SmolLM2, the voice of hibari-tts, and the picture model of our own."""
    with start_server(("omni-app", "serve", "demo", "--port", "{port}", "--workers", "2")) as server:
        yield server.wait_ready(180)


@pytest.fixture(scope="session")
def imitator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model that imitates recordings with their transcripts (CSM). It reads files below its directory `open`."""
    directory = tmp_path_factory.mktemp("imitator")
    model = tiny_speech.build("csm", directory / "csm")
    (directory / "open").mkdir()
    line = ("omni-app", "serve", str(model), "--port", "{port}", "--served-model-name", "tiny")
    flags = ("--allowed-local-media-path", str(directory / "open"), "--allowed-media-domains", "*")
    with start_server((*line, *flags, "--workers", "2")) as server:
        yield server.wait_ready(240)
