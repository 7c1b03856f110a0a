"""A tiny Whisper with random weights, which listens: clips of two seconds, letters as tokens, times of half seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import _cached

_VERSION = 1
CLIP_S = 2
"""Seconds of one clip: longer recordings are cut."""
POSITIONS = 96
"""Tokens of one clip, with those of its prompt."""
_TICKS = 50 * CLIP_S
"""Steps of 20 ms: timestamps count them, and the encoder makes one position of each."""
_TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")


def tiny_whisper() -> Path:
    """Its directory, made on first use and shared by all test processes of this user."""
    return _cached(f"whisper-{_VERSION}", build_tiny_whisper)


def build_tiny_whisper(target: Path) -> None:
    """Write the model to `target`: two layers each for sound and for text, special tokens as the real ones have."""
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
    )

    tokenizer = _tokenizer()
    hearing = WhisperFeatureExtractor(feature_size=16, chunk_length=CLIP_S)
    WhisperProcessor(hearing, tokenizer).save_pretrained(target)
    start, end = (tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("startoftranscript", "endoftext"))
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=_TICKS,
        max_target_positions=POSITIONS,
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        init_std=0.3,  # at the usual 0.02 it repeats one token and compares equal by luck
    )
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config)
    letters = tokenizer.convert_tokens_to_ids(list("abcdefghijklmnopqrstuvwxyz"))
    times = range(len(tokenizer) - 1 - _TICKS, len(tokenizer), 25)
    unlikely = [token for token in range(len(tokenizer)) if token not in letters and token not in times]
    with torch.no_grad():  # else most of what it writes is no text
        model.model.decoder.embed_tokens.weight[unlikely] *= 0.1
    model.generation_config = GenerationConfig(decoder_start_token_id=start, eos_token_id=end, pad_token_id=end)
    model.save_pretrained(target)


def _tokenizer() -> Any:
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = WhisperTokenizer(vocab={letter: rank for rank, letter in enumerate(alphabet)}, merges=[])
    names = ["endoftext", "startoftranscript", *LANGUAGES, *_TASKS]
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names]})
    times = [f"<|{tick * 0.02:.2f}|>" for tick in range(_TICKS + 1)]
    tokenizer.add_tokens([AddedToken(time, special=False, normalized=False) for time in times])
    return tokenizer
