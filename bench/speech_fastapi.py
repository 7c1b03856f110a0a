"""The smallest server that speaks: FastAPI and the demo's voice: `python -m bench.speech_fastapi PORT`.

What many put around such a model, and what bench.speech compares with.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from bench.speech_loop import THREADS, open_voice, pcm


class Request(BaseModel):
    """As much of OpenAI's request as the benchmark sends."""

    input: str
    response_format: str
    seed: int = 0


def build() -> FastAPI:
    """The application around the voice. Each sentence is one turn in a pool of THREADS threads."""
    voice = open_voice()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/audio/speech")
    async def speak(request: Request) -> StreamingResponse:
        return StreamingResponse(pcm(voice, request.input), media_type="audio/pcm")

    return app


if __name__ == "__main__":
    uvicorn.run(build(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
