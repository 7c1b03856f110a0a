"""The smallest server that draws: FastAPI, one lock, one stock pipeline: `python -m bench.images_fastapi MODEL PORT`.

What many put around a pipeline of diffusers, and what bench.images compares with.
"""

from __future__ import annotations

import base64
import io
import sys
import threading
import time
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.images_loop import draw, open_pipeline


class Request(BaseModel):
    """As much of OpenAI's request as the benchmark sends."""

    model: str
    prompt: str
    num_inference_steps: int
    size: str = "64x64"
    seed: int = 0


def build(model: str) -> FastAPI:
    """The application around the pipeline in the directory `model`."""
    app = FastAPI()
    pipe = open_pipeline(model)
    lock = threading.Lock()

    @app.post("/v1/images/generations")
    def generate(request: Request) -> dict[str, Any]:
        width, height = map(int, request.size.split("x"))
        with lock:
            picture = draw(pipe, request.prompt, request.num_inference_steps, width, height, request.seed)
        file = io.BytesIO()
        picture.save(file, "PNG")
        return {"created": int(time.time()), "data": [{"b64_json": base64.b64encode(file.getvalue()).decode()}]}

    return app


if __name__ == "__main__":
    uvicorn.run(build(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
