"""The real download from a hub that runs here: what arrives, and what is said when it cannot be reached."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.cluster.rundir import StartupError
from app.settings.models import prepare
from app.settings.resolve import examine
from app.settings.schema import Settings

COMMIT = "0123456789abcdef0123456789abcdef01234567"
INDEX = json.dumps({"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "X"], "vae": ["diffusers", "Y"]})
FILES = {
    "org/pictures": {
        "model_index.json": INDEX,
        "whole.safetensors": "all of it",
        "unet/config.json": "{}",
        "unet/model.safetensors": "full",
        "unet/model.fp16.safetensors": "half",
        "unet/model.bin": "pickled",
        "vae/model.bin": "pickled",
        "onnx/model.onnx": "graph",
    },
    "org/text": {
        "config.json": '{"model_type": "llama"}',
        "model.safetensors": "w",
        "pytorch_model.bin": "w",
    },
}


class FakeHub(BaseHTTPRequestHandler):
    """As much of the hub's HTTP as a download asks for."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        api = parts[0] == "api"
        files = FILES.get("/".join(parts[2:4] if api else parts[:2]), {})
        if api and "tree" in parts:
            content: Any = [{"type": "file", "path": x, "size": len(y), "oid": "0" * 40} for x, y in files.items()]
        elif api:
            content = {"id": "x", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]} if files else None
        else:
            content = files.get("/".join(parts[4:]))
        body = content.encode() if isinstance(content, str) else json.dumps(content or {}).encode()
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{len(body)}-{parts[-1]}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if content is None:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub for this process's children."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


def wanted(model: str, **typed: Any) -> Settings:
    return examine({"model": model, **typed}, {}).settings


def arrived(settings: Settings) -> set[str]:
    root = Path(settings.stages[0].model)
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


PICTURES = {"model_class_name": "StableDiffusionPipeline"}
BOTH: list[tuple[str, dict[str, Any]]] = [("org/pictures", PICTURES), ("org/text", {})]


async def test_a_diffusion_model_comes_in_one_format(hub: None) -> None:
    common = {"model_index.json", "unet/config.json", "vae/model.bin"}
    settings = await prepare(wanted("org/pictures", **PICTURES), lambda _: None)
    assert arrived(settings) == {*common, "unet/model.safetensors"}


async def test_a_variant_comes_in_the_place_of_the_full_weights(hub: None) -> None:
    half = wanted("org/pictures", **PICTURES, diffusers_load_kwargs={"variant": "fp16"})
    assert arrived(await prepare(half, lambda _: None)) == {
        "model_index.json",
        "unet/config.json",
        "unet/model.fp16.safetensors",
        "vae/model.bin",
    }


async def test_a_language_model_without_what_vllm_does_not_read(hub: None) -> None:
    assert arrived(await prepare(wanted("org/text"), lambda _: None)) == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("gone", ["offline", "unreachable"])
async def test_what_has_been_downloaded_serves_without_the_hub(
    gone: str, hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [arrived(await prepare(wanted(name, **more), lambda _: None)) for name, more in BOTH]
    monkeypatch.setenv(
        *{"offline": ("HF_HUB_OFFLINE", "1"), "unreachable": ("HF_ENDPOINT", "http://127.0.0.1:9")}[gone]
    )
    assert [arrived(await prepare(wanted(name, **more), lambda _: None)) for name, more in BOTH] == before


async def test_no_such_model(hub: None) -> None:
    with pytest.raises(StartupError, match="the hub has no such model, or it is private and HF_TOKEN is not set"):
        await prepare(wanted("org/nothing"), lambda _: None)


async def test_a_hub_that_cannot_be_reached(hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StartupError, match=r"the hub cannot be reached \(ConnectError\) and the model is not in the c"):
        await prepare(wanted("org/pictures", **PICTURES), lambda _: None)
