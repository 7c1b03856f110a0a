"""A text encoder that is published apart from its pipeline."""

from __future__ import annotations

from pathlib import Path

import diffusers
import pytest
import torch

from tests import tiny_diffusion, tiny_text
from tests.engines.diffusion.opening import Build, loaded


def test_an_auxiliary_text_encoder(tmp_path: Path) -> None:
    directory = hidream(tmp_path / "hidream", tmp_path / "llama")

    pipe = loaded(directory, auxiliary_text_encoder=str(tmp_path / "llama"), dtype="bfloat16")

    assert type(pipe).__name__ == "HiDreamImagePipeline"
    assert (type(pipe.text_encoder_4).__name__, pipe.text_encoder_4.dtype) == ("LlamaForCausalLM", torch.bfloat16)
    assert pipe.text_encoder_4.config.output_hidden_states is True
    assert pipe.tokenizer_4("a red circle").input_ids


def hidream(directory: Path, llama: Path) -> Path:
    """A pipeline that is published without its fourth text encoder, and that text encoder."""
    import transformers

    clip, t5, tokenizer = tiny_text.clip_tokenizer(), tiny_text.t5_tokenizer(), tiny_text.qwen_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(llama)
    tokenizer.save_pretrained(llama)
    transformer = diffusers.HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_channels=[32, 32],
        text_emb_dim=64,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(32, 32),
        llama_layers=(0, 1),
    )
    parts = {
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": tiny_diffusion.stable_diffusion().vae,
        "text_encoder": tiny_text.clip_encoder(clip, projection=32),
        "tokenizer": clip,
        "text_encoder_2": tiny_text.clip_encoder(clip, projection=32),
        "tokenizer_2": clip,
        "text_encoder_3": tiny_text.t5_encoder(t5),
        "tokenizer_3": t5,
        "transformer": transformer,
    }
    diffusers.HiDreamImagePipeline(**parts, text_encoder_4=None, tokenizer_4=None).save_pretrained(directory)
    return directory


def test_an_auxiliary_text_encoder_that_nothing_needs(tiny_pipelines: Build, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FluxPipeline takes none here: it has all its text encoders"):
        loaded(tiny_pipelines("flux"), auxiliary_text_encoder=str(tmp_path))
