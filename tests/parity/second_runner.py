"""A pytest plugin: `-p tests.parity.second_runner` has vLLM use its second model runner, that of GPUs, on a CPU.

That runner's kernels are Triton's, which has no backend for CPUs, but an interpreter of its own. vLLM's wheels for CPUs
look for the backend; so there is one in name. It takes minutes, and one kernel is beyond it, which draws from a seed:

    python -m pytest -p tests.parity.second_runner -k "not seed" tests/parity/test_talker_qwen3.py
"""

from __future__ import annotations

import os
from types import SimpleNamespace

# Triton makes its own functions when it is imported: for the interpreter only if that has been asked for by then.
os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
