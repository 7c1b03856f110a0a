from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from app.engines import noise
noise.silence()
import torchao
import vllm.triton_utils
from diffusers import StableDiffusionPipeline
from transformers import CLIPImageProcessor
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniTalkerConfig
Qwen2_5OmniTalkerConfig()
"""


def test_libraries_are_imported_in_silence() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == ""
