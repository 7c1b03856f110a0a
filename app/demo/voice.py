"""The demo's voice: `heart`, 24 kHz, out of the wheel hibari-tts, without any download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from app.demo.text import DemoUnavailableError

_PACKAGE = "hibari"
_NEEDED = ("hibari.onnx", "voices.json")


def demo_voice() -> Path:
    """The directory of the voice's files inside the wheel; nothing of it is imported.

    Raises:
        DemoUnavailableError: the wheel, or what it runs on, is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    assets = None if spec is None or spec.origin is None else Path(spec.origin).with_name("assets")
    if assets is None or not all((assets / name).is_file() for name in _NEEDED):
        raise DemoUnavailableError("the demo's voice is not installed: pip install 'omni-app[demo]'")
    if importlib.util.find_spec("onnxruntime") is None:
        raise DemoUnavailableError("the demo's voice needs onnxruntime: pip install 'omni-app[demo]'")
    return assets
