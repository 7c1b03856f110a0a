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
"""


def test_libraries_are_imported_in_silence() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == ""
