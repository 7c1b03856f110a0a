"""Where torchvision is missing: which model classes take the place of vLLM's, and what those import from it."""

from __future__ import annotations

import importlib
import importlib.util
import sys

_NEEDS_TORCHVISION = "transformers.models.qwen2_vl.image_processing_qwen2_vl"
_HAS_THE_SAME = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
_MODELS = "app.engines.omni.thinker_models"


def models() -> dict[str, str]:
    """Our thinkers by architecture, as vLLM's registry takes them; none where vLLM's own can be used."""
    if importlib.util.find_spec("torchvision") is not None:
        return {}
    return {
        "Qwen2_5OmniModel": f"{_MODELS}:Qwen2_5OmniThinker",
        "Qwen2_5OmniForConditionalGeneration": f"{_MODELS}:Qwen2_5OmniThinker",
        "Qwen3OmniMoeForConditionalGeneration": f"{_MODELS}:Qwen3OmniMoeThinker",
    }


def stand_in() -> None:
    """Let vLLM import its Qwen-VL models: they want one function of a module that cannot be imported without
    torchvision, and its sister for Pillow has that function too."""
    if importlib.util.find_spec("torchvision") is None:
        sys.modules.setdefault(_NEEDS_TORCHVISION, importlib.import_module(_HAS_THE_SAME))
