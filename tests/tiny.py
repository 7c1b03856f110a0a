"""Tiny models with random weights, made in a second and always the same, for tests that need a real engine."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_VERSION = 3
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_qwen3() -> Path:
    """Directory of the tiny Qwen3, made on first use and shared by all test processes of this user."""
    return _cached(f"qwen3-{_VERSION}", build_tiny_qwen3)


def _cached(name: str, build: Callable[[Path], None]) -> Path:
    root = Path(tempfile.gettempdir()) / f"omni-app-tests-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    target = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = root / f"{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            build(part)
            part.rename(target)
    return target


def build_tiny_qwen3(target: Path) -> None:
    """Write a two-layer Qwen3 (0.3 M parameters, one token a byte, 2048 positions) with a chat template to `target`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: rank for rank, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(target)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.3,  # at the usual 0.02 it repeats one token and compares equal by luck
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(target)


def tiny_lora() -> Path:
    """Directory of a rank-4 LoRA adapter for the tiny Qwen3, large enough to change what it says."""
    return _cached(f"lora-{_VERSION}", build_tiny_lora)


def build_tiny_lora(target: Path) -> None:
    """Write the adapter: query and value projections of both layers, in PEFT's layout."""
    import json

    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    sizes = {"q_proj": 128, "v_proj": 64}
    tensors = {}
    for layer in range(2):
        for name, out in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(4, 128)
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(out, 4)
    save_file(tensors, target / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 4, "target_modules": list(sizes)}
    (target / "adapter_config.json").write_text(json.dumps(config))
