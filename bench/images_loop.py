"""A stock pipeline in a Python loop, no server: `python -m bench.images_loop MODEL`, driven by lines of JSON.

Each line in is a Picture; the line out is the seconds that the pipeline's call took. "encode" and a size in pixels
asks for the seconds that encoding such a picture as PNG takes.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

PROMPT = "a red circle on a blue background"


@dataclass(frozen=True)
class Picture:
    """One picture of the benchmark: the same request for all sides."""

    steps: int
    side: int = 64
    seed: int = 0
    prompt: str = PROMPT


def open_pipeline(model: str) -> Any:
    """The pipeline in the directory `model`, on the CPU with one thread."""
    import diffusers
    import torch

    torch.set_num_threads(1)
    pipe = diffusers.DiffusionPipeline.from_pretrained(model)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe: Any, prompt: str, steps: int, width: int, height: int, seed: int) -> Any:
    """A PIL picture."""
    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    return pipe(prompt, num_inference_steps=steps, width=width, height=height, generator=generator).images[0]


def encoding_s(side: int) -> float:
    """Seconds to encode a noisy picture of `side` x `side` pixels, as the server does: the median of nine."""
    import numpy as np

    from app.media.encode import encode_picture

    smooth = np.linspace(0, 200, side * side * 3).reshape(side, side, 3)
    pixels = (smooth + np.random.default_rng(0).normal(0, 8, smooth.shape).clip(0, 55)).astype(np.uint8)
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        encode_picture(pixels, "png", 100)
        times.append(time.perf_counter() - begin)
    return sorted(times)[4]


def main() -> None:
    """Answer lines until stdin ends."""
    pipe = open_pipeline(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "encode" in asked:
            seconds = encoding_s(asked["encode"])
        else:
            picture = Picture(**asked)
            begin = time.perf_counter()
            draw(pipe, picture.prompt, picture.steps, picture.side, picture.side, picture.seed)
            seconds = time.perf_counter() - begin
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
