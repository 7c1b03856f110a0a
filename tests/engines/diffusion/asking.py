"""A diffusion engine asked directly, and the stock pipeline as its measure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from app.cluster import messages as m
from app.engines.diffusion.engine import DiffusionEngine
from app.protocol.pictures import PictureTask, encode_task
from app.settings.schema import StageConfig

PROMPT, OTHER = "a red circle on a blue background", "hello world, a photo of an astronaut"
CALLS: dict[str, dict[str, Any]] = {"flux2klein": {"text_encoder_out_layers": [1, 2, 3]}}
"""What the call of a tiny pipeline needs, because it is so tiny."""


class Asked:
    """A request that keeps its events; `seen` is set at each of them."""

    def __init__(self, task: PictureTask, kind: str = "image") -> None:
        self.request_id, self.kind, self.model, self.body = "r", kind, "", encode_task(task)
        self.events: list[m.AnyEvent] = []
        self.seen = asyncio.Event()

    def emit(self, event: m.AnyEvent) -> None:
        self.events.append(event)
        self.seen.set()

    async def ready(self) -> None:
        """Never short of credit."""

    async def until(self, kind: type[m.Event]) -> None:
        """Wait for the first event of a kind."""
        while not any(isinstance(event, kind) for event in self.events):
            self.seen.clear()
            await self.seen.wait()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def pictures(self) -> list[np.ndarray[Any, Any]]:
        """The finished ones, by index."""
        done = sorted((event for event in self.of(m.Picture) if event.preview < 0), key=lambda event: event.index)
        return [decoded(event.data) for event in done]


def task(**fields: Any) -> PictureTask:
    """A small one: 64 x 64 pixels, three steps, seed 7."""
    return PictureTask(**{"prompt": PROMPT, "width": 64, "height": 64, "seed": 7, "num_inference_steps": 3} | fields)


@asynccontextmanager
async def started(model: Path, **engine_args: Any) -> AsyncIterator[DiffusionEngine]:
    """An engine on a tiny pipeline."""
    kind = model.name
    arguments = {"dtype": "float32", "device": "cpu", "diffusers_call_kwargs": CALLS.get(kind, {})} | engine_args
    stage = StageConfig(stage_id=0, name="picture", kind="diffusion", model=str(model), engine_args=arguments)
    engine = DiffusionEngine(stage)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


async def ask(engine: DiffusionEngine, asked: PictureTask, kind: str = "image") -> Asked:
    request = Asked(asked, kind)
    await engine.run(request)
    return request


def decoded(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(BytesIO(data)))


def file(image: Image.Image, format: str = "PNG") -> bytes:
    buffer = BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


def noise(width: int = 64, height: int = 64, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def stock(pipe: Any, kind: str, seed: int = 7, **arguments: Any) -> np.ndarray[Any, Any]:
    """One picture of the pipeline as its users call it, by way of its own conversion to Pillow images."""
    call = {"prompt": PROMPT, "width": 64, "height": 64, "num_inference_steps": 3} | CALLS.get(kind, {}) | arguments
    images = pipe(**call, generator=torch.Generator("cpu").manual_seed(seed), output_type="pil")[0]
    return np.asarray(images[0][0] if isinstance(images[0], list) else images[0])


Directories = Callable[[str], Path]
Pipelines = Callable[[str], Any]
