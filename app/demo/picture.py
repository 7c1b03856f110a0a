"""Where the demo's picture model is: it ships in the package, as app/demo/train_t2i.py wrote it."""

from __future__ import annotations

from pathlib import Path

from app.demo.text import DemoUnavailableError


def demo_picture_model() -> Path:
    """The directory of a StableDiffusionPipeline that draws coloured shapes, 64 x 64 pixels.

    Raises:
        DemoUnavailableError: this installation was made without the weights.
    """
    path = Path(__file__).with_name("t2i")
    if not (path / "model_index.json").is_file():
        raise DemoUnavailableError(
            f"the demo's picture model is not in {path}: install omni-app again, "
            "or train it there: python -m app.demo.train_t2i --out DIR, then copy DIR/pipeline"
        )
    return path
