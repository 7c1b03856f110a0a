"""The sections of bench.gpu_check on pictures: one mid-sized pipeline of random weights, served in each way there is.

Every way draws the same picture; what it changes is told by the time of a step, the most memory that the device gave,
and how far the picture is from the plain one.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.gpu_finding import NO_GPU, Finding, has_gpu

Picture = np.ndarray[Any, np.dtype[np.uint8]]

_STEPS = 8
_AT_ONCE = 8
_CLOSE = 2.0
"""Mean distance of two pictures, in steps of a byte, that sums in another order may make in bfloat16."""
_APART = 24.0
"""The same where weights, keys or whole steps are approximated; pictures of different seeds are some 80 apart."""

_WAYS: dict[str, tuple[dict[str, Any], float]] = {
    "step execution": ({"step_execution": True, "max_num_seqs": _AT_ONCE}, _CLOSE),
    "parts offloaded": ({"enable_cpu_offload": True}, _CLOSE),
    "layers offloaded": ({"enable_layerwise_offload": True}, _CLOSE),
    "cache: first_block": ({"cache_backend": "first_block"}, _APART),
    "cache: taylorseer": ({"cache_backend": "taylorseer"}, _APART),
}
"""Engine arguments, and how far the picture may be from the plain one."""
_KERNELS: dict[str, tuple[dict[str, Any], float]] = {
    "attention: flash": ({"diffusion_attention_backend": "_native_flash"}, _CLOSE),
    "attention: cudnn": ({"diffusion_attention_backend": "_native_cudnn"}, _CLOSE),
    "attention: sage": ({"diffusion_attention_backend": "sage"}, _APART),
    "keys and values of 8 bits": ({"diffusion_kv_cache_dtype": "fp8"}, _APART),
    "weights: fp8": ({"quantization": "fp8"}, _APART),
    "weights: int8": ({"quantization": "int8"}, _APART),
    "blocks compiled": ({"diffusion_compile_granularity": "regional"}, _CLOSE),
    "blocks with CUDA graphs": ({"enable_cuda_graph_decode": True}, _CLOSE),
}


def pictures() -> Iterator[Finding]:
    """A diffusion stage: speed alone and in a batch, stepwise, offloaded, with caches; asleep and awake; a video."""
    with tempfile.TemporaryDirectory(prefix="check") as directory:
        model = _model(Path(directory) / "flux")
        plain = yield from _plain(model)
        yield from _compared(model, _WAYS, plain)
        for level in (1, 2):
            yield asyncio.run(_slept(model, level, plain))
    yield asyncio.run(_video())


def kernels() -> Iterator[Finding]:
    """What a diffusion stage can compute with: attention kernels, 8 bits, compiled blocks, CUDA graphs."""
    if not has_gpu():
        yield Finding("kernels for pictures", NO_GPU, "not run")
        return
    with tempfile.TemporaryDirectory(prefix="check") as directory:
        model = _model(Path(directory) / "flux")
        plain = yield from _plain(model)
        yield from _compared(model, _KERNELS, plain)


def _model(target: Path) -> Path:
    """A Flux pipeline whose denoiser has 0.3 billion parameters on a GPU, and 9 million on a CPU."""
    import diffusers
    import torch

    from tests import tiny_diffusion

    torch.manual_seed(0)
    heads, layers = (8, 6) if has_gpu() else (2, 2)
    pipe = tiny_diffusion.flux()
    transformer = diffusers.FluxTransformer2DModel.from_config(
        pipe.transformer.config,
        num_layers=layers,
        num_single_layers=2 * layers,
        attention_head_dim=128,
        num_attention_heads=heads,
        axes_dims_rope=(16, 56, 56),
    )
    pipe.register_modules(transformer=transformer)
    pipe.save_pretrained(target)
    return target


class Measured(msgspec.Struct, frozen=True):
    """`step_s`: seconds of a step; `most`: bytes of the device at most; `together_s`: of a step of several at once."""

    picture: Picture
    step_s: float
    most: int
    together_s: float

    def told(self) -> str:
        memory = f", at most {self.most / 2**20:.0f} MiB" if self.most else ""
        return f"{self.step_s * 1000:.1f} ms a step{memory}; {_AT_ONCE} at once: {self.together_s * 1000:.1f} ms"


def _plain(model: Path) -> Generator[Finding, None, Measured]:
    """What the others are compared with."""
    alone = asyncio.run(_measured(model, {}))
    yield Finding("plain", alone.told())
    batched = asyncio.run(_measured(model, {"max_num_seqs": _AT_ONCE}))
    gain = _AT_ONCE * alone.step_s / batched.together_s
    yield Finding(f"a batch of {_AT_ONCE}", f"{batched.told()}, {gain:.1f} times the pictures")
    return alone


def _compared(model: Path, ways: Mapping[str, tuple[dict[str, Any], float]], plain: Measured) -> Iterator[Finding]:
    for name, (arguments, allowed) in ways.items():
        try:
            made = asyncio.run(_measured(model, arguments))
        except ValueError as error:  # it cannot be had here, and says why
            yield Finding(name, str(error).partition("\n")[0][:160], "not run")
        except Exception as error:  # noqa: BLE001 -- whatever a kernel raises is the finding
            yield Finding(name, f"{type(error).__name__}: {error}".partition("\n")[0][:160], "failed")
        else:
            apart = _apart(made.picture, plain.picture)
            state = "ok" if apart <= allowed else "failed"
            yield Finding(name, f"{made.told()}; {apart:.2f} from the plain picture", state)


def _apart(one: Picture, other: Picture) -> float:
    return float(np.abs(one.astype(np.int16) - other).mean())


async def _measured(model: Path, arguments: dict[str, Any]) -> Measured:
    import torch

    from tests.engines.diffusion.asking import ask, started

    with_gpu = has_gpu()
    if with_gpu:
        torch.cuda.reset_peak_memory_stats()
    async with started(model, **_device(), **arguments) as engine:
        await ask(engine, _task(7))  # it may compile
        first, alone_s = await _drawn(engine, [7])
        _, together_s = await _drawn(engine, list(range(_AT_ONCE)))
        most = torch.cuda.max_memory_allocated() if with_gpu else 0
    return Measured(first, alone_s / _STEPS, most, together_s / _STEPS)


async def _drawn(engine: Any, seeds: list[int]) -> tuple[Picture, float]:
    """The first picture, and how long all took."""
    from tests.engines.diffusion.asking import ask

    begin = time.perf_counter()
    asked = await asyncio.gather(*(ask(engine, _task(seed)) for seed in seeds))
    return asked[0].pictures[0], time.perf_counter() - begin


async def _slept(model: Path, level: int, plain: Measured) -> Finding:
    from app.protocol.sleep import SleepOrder, SleepReport
    from tests.engines.diffusion.asking import started

    async with started(model, **_device(), enable_sleep_mode=True) as engine:
        slept = await engine.call("sleep", msgspec.json.encode(SleepOrder(level)))
        begin = time.perf_counter()
        await engine.call("wake_up", b"")
        awake_s = time.perf_counter() - begin
        picture, _ = await _drawn(engine, [7])
    freed = msgspec.json.decode(slept, type=SleepReport).freed_bytes / 2**20
    apart = _apart(picture, plain.picture)
    told = f"{freed:.0f} MiB given back, awake after {awake_s:.2f} s; {apart:.2f} from the plain picture"
    return Finding(f"sleep, level {level}", told, "ok" if apart <= _CLOSE else "failed")


async def _video() -> Finding:
    from app.cluster.messages import Video
    from app.protocol.videotask import VideoTask, encode_task
    from tests import tiny_diffusion
    from tests.engines.diffusion.asking import Asked, started

    with tempfile.TemporaryDirectory(prefix="check") as directory:
        model = Path(directory) / "wan"
        tiny_diffusion.wan().save_pretrained(model)
        async with started(model, **_device(), diffusion_streaming_output=True) as engine:
            asked = Asked(_task(7), "video")
            video = VideoTask(prompt="a boat", frames=17, width=256, height=256, num_inference_steps=4, streamed=True)
            asked.body = encode_task(video)
            begin = time.perf_counter()
            await engine.run(asked)
            seconds = time.perf_counter() - begin
    pieces = [event for event in asked.events if isinstance(event, Video)]
    frames = sum(piece.frames for piece in pieces)
    told = f"{frames} frames in {len(pieces)} pieces, {seconds:.2f} s"
    return Finding("a video while it is decoded", told, "ok" if frames == 17 and len(pieces) > 4 else "failed")


def _task(seed: int) -> Any:
    from tests.engines.diffusion.asking import task

    side = 512 if has_gpu() else 64
    return task(seed=seed, width=side, height=side, num_inference_steps=_STEPS)


def _device() -> dict[str, Any]:
    return {"device": "", "dtype": "bfloat16"} if has_gpu() else {}
