"""A scripted model that draws, for tests of the routes that ask it."""

from __future__ import annotations

from pathlib import Path

from app.cluster.messages import Done, Picture, Progress, Usage
from app.protocol.pictures import PictureTask, decode_task
from tests.routes.serving import ScriptedOrchestrator, Served, Step

PNG = "iVBORw0KGgo="
"""The base64 that the script draws: not a picture, but nobody here decodes it."""
CARD = '{"class": "Tiny", "parameters": {"num_inference_steps": 5, "guidance_scale": 7.5}}'


def picture(index: int = 0, preview: int = -1, data: bytes = PNG.encode()) -> Picture:
    return Picture(index, data, "png", 64, 48, 7 + index, preview)


DRAWING: list[Step] = [
    [Progress(1, 5), picture(preview=0)],
    [Progress(5, 5), picture(0), picture(1)],
    [Usage(3, 12), Done()],
]


def drawing(script: list[Step] | None = None, *, directory: Path = Path("/nowhere"), **server: object) -> Served:
    """Routes over a model that only draws."""
    orchestrator = ScriptedOrchestrator(DRAWING if script is None else script)
    orchestrator.tasks = ["image", "image_edit", "image_variation"]
    orchestrator.card = CARD
    return Served(orchestrator, directory, **server)


def asked(served: Served) -> PictureTask:
    """The task of the last request that reached the model."""
    return decode_task(served.orchestrator.submitted[-1][2])
