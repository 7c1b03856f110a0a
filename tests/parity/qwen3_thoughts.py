"""What a Qwen3-Omni thinker could have made: rows for its talker, of a conversation of text, sound or pictures."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.qwen3_oracle import Thought

SPOKEN = "Well, I would say so: a short answer, and no more."
SOUND = 13
GRID = torch.tensor([[1, 4, 6]])
MERGED = 6


def thought(model: Any, tokenizer: Any, turns: list[tuple[str, str]], reply: str = SPOKEN, seed: int = 0) -> Thought:
    """Of turns of (role, text), the last one the assistant's. <sound> and <picture> in a text stand for one each.

    Rows of text are the thinker's embeddings; those of sound and pictures, and all hidden states, are random.
    """
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
    for name, opening, token, ending, count in (
        ("<sound>", "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>", SOUND),
        ("<picture>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", MERGED),
    ):
        written = written.replace(name, opening + token * count + ending)
    prompt = torch.tensor(tokenizer(written).input_ids)
    ids = torch.cat((prompt, torch.tensor(tokenizer(reply).input_ids)))
    grid = GRID.repeat(written.count("<|vision_start|>"), 1) if "<|vision_start|>" in written else None
    numbers = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        embeddings = model.thinker.get_input_embeddings()(ids)
    positions = torch.arange(len(prompt)).expand(3, -1)
    if grid is not None:
        found, _ = model.thinker.get_rope_index(prompt[None], grid, attention_mask=torch.ones(1, len(prompt)))
        positions = found[:, 0].long()
    return Thought(ids, embeddings, torch.randn(embeddings.shape, generator=numbers), positions, grid)
