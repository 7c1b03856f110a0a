"""The sections of bench.gpu_check: each yields what it finds. A part of the project that computes adds one.

Heavy imports are the sections' own: the driver, and every other section, must not depend on them.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench import gpu_pictures, gpu_robot
from bench.gpu_finding import NO_GPU, Finding, has_gpu

_PROMPTS = 16
_TOKENS = 64


Section = Callable[[], Iterator[Finding]]


def names() -> list[str]:
    """The sections, in the order in which they run: what others need first."""
    return list(_SECTIONS)


def run(name: str) -> Iterator[Finding]:
    """What a section finds, in this process."""
    yield from _SECTIONS[name]()


# ------------------------------------------------------------------------------------------------ machine


def machine() -> Iterator[Finding]:
    """Versions and devices, as the engines see them."""
    import torch

    from app.settings import platforms

    yield Finding("platform of deploy files", platforms.current())
    yield Finding("torch", f"{torch.__version__}, CUDA {torch.version.cuda}, HIP {torch.version.hip}")
    if not has_gpu():
        yield Finding("devices", NO_GPU, "not run")
        return
    for index in range(torch.accelerator.device_count()):
        found = torch.cuda.get_device_properties(index)
        size = f"{found.total_memory / 2**30:.1f} GiB"
        yield Finding(f"device {index}", f"{found.name}, {size}, capability {found.major}.{found.minor}")
    yield from _matrices()


def _matrices() -> Iterator[Finding]:
    import torch

    left = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")
    seconds = _device_seconds(lambda: left @ left)
    yield Finding("bfloat16 matrices of 4096", f"{2 * 4096**3 / seconds / 1e12:.0f} TFLOP/s")


def _device_seconds(call: Callable[[], Any]) -> float:
    """Seconds of a call, the median of several after a first one that may compile."""
    import torch

    def timed() -> float:
        begin = time.perf_counter()
        call()
        if has_gpu():
            torch.accelerator.synchronize()
        return time.perf_counter() - begin

    timed()
    return statistics.median(timed() for _ in range(10))


# ------------------------------------------------------------------------------------------------ attention


def attention() -> Iterator[Finding]:
    """The kernels that a diffusion stage may choose: which run, how fast, and how far from the plain one."""
    import torch
    from diffusers.models import attention_dispatch as dispatch

    from app.engines.device import compute_device

    device = compute_device("")
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    tokens = 256 if device.type == "cpu" else 4096
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, tokens, 8, 64).to(device, dtype) for _ in range(3))
    native = dispatch.AttentionBackendName.NATIVE
    plain = dispatch.dispatch_attention_fn(query, key, value, backend=native).float()
    for backend in dispatch.AttentionBackendName:
        if str(backend.value).endswith("_hub"):
            continue  # would be downloaded
        try:
            dispatch._check_attention_backend_requirements(backend)
            made = dispatch.dispatch_attention_fn(query, key, value, backend=backend).float()
            seconds = _device_seconds(lambda: dispatch.dispatch_attention_fn(query, key, value, backend=backend))  # noqa: B023
        except Exception as error:  # noqa: BLE001 -- whatever a kernel raises is the finding
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            yield Finding(str(backend.value), reason[:120], "not run")
            continue
        apart = (made - plain).abs().max().item()
        close = apart < (1e-4 if dtype == torch.float32 else 0.05)
        result = f"{seconds * 1000:.2f} ms at {tokens} tokens, at most {apart:.1e} from native"
        yield Finding(str(backend.value), result, "ok" if close else "failed")


# ------------------------------------------------------------------------------------------------ code2wav


def code2wav() -> Iterator[Finding]:
    """The vocoders of omni models, torch modules of our own making: sound per second, and how far from the CPU's."""
    from tests.tiny_omni import build

    with tempfile.TemporaryDirectory(prefix="check") as directory:
        for kind, shape in (("qwen2_5_omni", ()), ("qwen3_omni_moe", (4,))):
            yield from asyncio.run(_vocoder(build(kind, Path(directory) / kind), kind, shape))


async def _vocoder(model: Path, kind: str, shape: tuple[int, ...]) -> list[Finding]:
    import numpy as np

    from tests.tiny_omni import CODES

    frames = 50 if kind == "qwen2_5_omni" else 12
    codes = [np.random.default_rng(seed).integers(0, CODES, (frames, *shape), np.int32) for seed in range(8)]
    found, sounds = [], {}
    for device in ("cpu", "") if has_gpu() else ("cpu",):
        async with _code2wav(model, device) as engine:
            await _say(engine, codes[0])
            for count in (1, 8) if device == "" or not has_gpu() else (1,):
                begin = time.perf_counter()
                heard = await asyncio.gather(*(_say(engine, one) for one in codes[:count]))
                seconds = time.perf_counter() - begin
                said = sum(len(sound) for sound in heard) / 24_000 / seconds
                sounds[device] = heard[0]
                where = device or "the accelerator"
                found.append(Finding(f"{kind} on {where}, {count} at once", f"{said:.1f} s of sound a second"))
    if not has_gpu():
        return [*found, Finding(f"{kind} on an accelerator", NO_GPU, "not run")]
    apart = np.abs(sounds["cpu"] - sounds[""]).max()
    loud = np.abs(sounds["cpu"]).max()
    state: Literal["ok", "failed"] = "ok" if apart < 0.05 * loud else "failed"
    return [*found, Finding(f"{kind}: from the CPU's sound", f"at most {apart:.1e} of {loud:.2f}", state)]


class _code2wav:  # noqa: N801 -- a context manager, used as a function
    """A vocoder's engine for the time of a block."""

    def __init__(self, model: Path, device: str) -> None:
        from app.engines.omni.code2wav.engine import Code2WavEngine
        from app.settings.schema import StageConfig

        stage = StageConfig(stage_id=2, name="code2wav", kind="generation", model=str(model), devices=device)
        self._engine = Code2WavEngine(stage)

    async def __aenter__(self) -> Any:
        await self._engine.start()
        return self._engine

    async def __aexit__(self, *exc_info: object) -> None:
        await self._engine.stop()


async def _say(engine: Any, codes: Any) -> Any:
    import numpy as np

    from app.cluster.messages import Audio
    from tests.engines.omni.code2wav.decoding import ask, task

    fed = await ask(engine, task(), codes)
    data = b"".join(bytes(event.data) for event in fed.events if isinstance(event, Audio))
    return np.frombuffer(data, "<i2").astype(np.float32) / 32767


# ------------------------------------------------------------------------------------------------ vLLM


def text_eager() -> Iterator[Finding]:
    """A language model on vLLM without graphs."""
    yield from _text(enforce_eager=True)


def text_graphs() -> Iterator[Finding]:
    """The same with what vLLM compiles and captures; slower to start."""
    if has_gpu():
        yield from _text(enforce_eager=False)
    else:
        yield Finding("CUDA graphs", NO_GPU, "not run")


def _text(*, enforce_eager: bool) -> Iterator[Finding]:
    from bench.model import build

    with tempfile.TemporaryDirectory(prefix="check") as directory:
        yield from asyncio.run(_generate(build(Path(directory) / "tiny"), enforce_eager))


async def _generate(model: Path, enforce_eager: bool) -> list[Finding]:
    from app.engines.llm.engine import LlmEngine
    from app.settings.schema import StageConfig

    arguments = {"dtype": "float32", "max_model_len": 1024, "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 32}
    stage = StageConfig(
        stage_id=0, name="llm", kind="llm", model=str(model), engine_args=arguments | {"enforce_eager": enforce_eager}
    )
    engine = LlmEngine(stage, ["tiny"])
    begin = time.perf_counter()
    await engine.start()
    found = [Finding("start", f"{time.perf_counter() - begin:.1f} s")]
    try:
        alone = [await _completion(engine, number) for number in range(4)]
        begin = time.perf_counter()
        together = await asyncio.gather(*(_completion(engine, number) for number in range(_PROMPTS)))
        speed = _PROMPTS * _TOKENS / (time.perf_counter() - begin)
        found.append(Finding(f"{_PROMPTS} prompts at once", f"{speed:.0f} tokens/s"))
        same = sum(one == other for one, other in zip(alone, together, strict=False))
        state: Literal["ok", "failed"] = "ok" if same == len(alone) else "failed"
        found.append(Finding("alone and in a batch", f"{same} of {len(alone)} texts are the same in float32", state))
    finally:
        await engine.stop()
    return found


async def _completion(engine: Any, number: int) -> str:
    from tests.engines.llm.recorder import run as ask

    body = {"prompt": f"{number} is", "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True}
    answer = (await ask(engine, "completion", body)).answer()
    return str(answer["choices"][0]["text"])


def aligner() -> Iterator[Finding]:
    """A forced aligner on vLLM's pooling runner: the times of words, against transformers' on the CPU."""
    yield from asyncio.run(_align())


async def _align() -> list[Finding]:
    from app.cluster.messages import Document
    from app.engines.llm.engine import LlmEngine
    from app.protocol.aligning import AlignTask, decode_alignment, encode_task
    from tests.engines.llm.recorder import Recorder
    from tests.recordings import as_wav, chirp
    from tests.tiny_aligner import aligner_stage, reference_times

    text, sound = "one two three four five six", as_wav(chirp(4.0))
    stage = aligner_stage()
    sizes = {"dtype": "float32", "enforce_eager": True}
    engine = LlmEngine(msgspec.structs.replace(stage, engine_args=stage.engine_args | sizes), ["aligner"])
    await engine.start()
    try:
        request = Recorder("align", encode_task(AlignTask(text=text, file=sound)))
        begin = time.perf_counter()
        await engine.run(request)
        seconds = time.perf_counter() - begin
    finally:
        await engine.stop()
    (document,) = [event for event in request.events if isinstance(event, Document)]
    found, wanted = decode_alignment(document.body).words, reference_times(text, sound)
    same = sum(one == other for one, other in zip(found, wanted, strict=True))
    state: Literal["ok", "failed"] = "ok" if same == len(wanted) else "failed"
    return [Finding("words timed as by transformers", f"{same} of {len(wanted)}, in {seconds:.2f} s", state)]


# ------------------------------------------------------------------------------------------------ omni


def omni_eager() -> Iterator[Finding]:
    """Thinker, talker and code2wav as a server, without graphs: the first thing to try on a new machine."""
    yield from _omni("qwen2_5_omni", "--enforce-eager")


def omni_graphs() -> Iterator[Finding]:
    """The same with CUDA graphs; the tap and the talker's rows must survive their replay."""
    if has_gpu():
        yield from _omni("qwen2_5_omni")
    else:
        yield Finding("CUDA graphs", NO_GPU, "not run")


def omni_qwen3() -> Iterator[Finding]:
    """Qwen3-Omni: the code predictor inside the talker's step."""
    yield from _omni("qwen3_omni_moe", "--enforce-eager")


def _omni(kind: str, *flags: str) -> Iterator[Finding]:
    from bench import tree, variants
    from bench.server import running
    from tests import tiny_omni

    tree.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="check") as directory:
        model = Path(directory)
        getattr(tiny_omni, kind)(model, endless=True)
        with running(variants.omni(*flags), model) as server:
            yield Finding("start", f"{server.ready_s:.1f} s")
            yield from asyncio.run(_conversations(server.port))


async def _conversations(port: int) -> list[Finding]:
    from bench.omni_load import run as load
    from bench.omni_loop import Load

    await load(Load(1, 1, port=port))
    found = []
    for clients in (1, 4):
        seen = await load(Load(clients, 1, first=10 * clients, port=port))
        text, first, total = (
            statistics.median(getattr(one, name) for one in seen.heard) for name in ("text_s", "first_s", "total_s")
        )
        sound = sum(one.audio_s for one in seen.heard)
        found.append(
            Finding(
                f"{clients} at once",
                f"first text {text:.2f} s, first sound {first:.2f} s, whole {total:.2f} s, {sound:.1f} s of sound",
            )
        )
    return found


_SECTIONS: dict[str, Section] = {
    "machine": machine,
    "attention": attention,
    "pictures": gpu_pictures.pictures,
    "pictures, kernels": gpu_pictures.kernels,
    "code2wav": code2wav,
    "policy": gpu_robot.policy,
    "text, eager": text_eager,
    "text, graphs": text_graphs,
    "aligner": aligner,
    "omni, eager": omni_eager,
    "omni, graphs": omni_graphs,
    "omni, Qwen3": omni_qwen3,
}
