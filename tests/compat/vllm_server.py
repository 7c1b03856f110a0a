"""A server with a tiny model on the real vLLM, and a client for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.servers import Server, start_server
from tests.tiny import tiny_qwen3

KEY = "key-of-the-tests"


@contextmanager
def vllm_server(directory: Path, env: Mapping[str, str] | None = None, **engine_args: Any) -> Iterator[httpx.Client]:
    """Serve the tiny model as "tiny" behind KEY, with two API workers; `directory` is for the deploy file."""
    with running(directory, env, **engine_args) as (_, client):
        yield client


@contextmanager
def running(
    directory: Path, env: Mapping[str, str] | None = None, **engine_args: Any
) -> Iterator[tuple[Server, httpx.Client]]:
    """The same, with the Server."""
    arguments = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 64} | engine_args
    stage = {
        "stage_id": 0,
        "devices": "cpu",
        "engine_args": arguments,
        "env": {"VLLM_LOGGING_LEVEL": "ERROR"},
    }
    deploy = directory / "deploy.yaml"
    deploy.write_text(json.dumps({"pipeline": "llm", "stages": [stage]}))
    settings = {
        "OMNI_MODEL": str(tiny_qwen3()),
        "OMNI_SERVED_MODEL_NAME": "tiny",
        "OMNI_DEPLOY_CONFIG": str(deploy),
        "OMNI_API_KEY": KEY,
        "GRANIAN_WORKERS": "2",
    }
    with start_server(env=settings | dict(env or {})) as server:
        server.wait_ready(180)
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            yield server, client
