"""A tiny forced aligner with random weights, in the layout of the published one, and its twin in transformers.

The checkpoint is what vLLM reads: `thinker.*` names, `classify_num` classes of `SEGMENT_MS` each. `reference()` is the
same weights as transformers' own class, made of them, so that both can be asked the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import structs

from app.protocol.aligning import Word
from app.settings import aligner as settings
from app.settings.schema import MediaConfig, StageConfig
from app.settings.sources import Given
from tests.tiny import _cached

_VERSION = 2
CLASSES = 64
SEGMENT_MS = 80
_RATE = 16_000
_SPECIAL = {
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "timestamp_token": "<timestamp>",
}
_WINDOW = {"n_window": 50, "n_window_infer": 800}
_AUDIO: dict[str, Any] = {
    "num_mel_bins": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "d_model": 32,
    "output_dim": 64,
    "downsample_hidden_size": 16,
    **_WINDOW,
}
_RENAMED = (
    ("model.multi_modal_projector.linear_1.", "thinker.audio_tower.proj1."),
    ("model.multi_modal_projector.linear_2.", "thinker.audio_tower.proj2."),
    ("model.audio_tower.", "thinker.audio_tower."),
    ("model.language_model.", "thinker.model."),
    ("score.", "thinker.lm_head."),
)
"""transformers' names of the weights, and those of the published checkpoint."""


def tiny_aligner() -> Path:
    """Directory of the model, made on first use and shared by all test processes of this user."""
    return _cached(f"aligner-{_VERSION}", build_tiny_aligner)


def aligner_stage(directory: Path | None = None) -> StageConfig:
    """A stage as --forced-aligner makes it behind a voice."""
    voice = StageConfig(stage_id=0, name="speech", kind="speech", model="demo", outputs=["audio"])
    flag = Given(str(directory or tiny_aligner()), "flag --forced-aligner", typed=True)
    found = settings.aligner_stage([voice], {"forced_aligner": flag}, [], [])
    assert found is not None
    sizes = {"max_model_len": 1024, "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 8}
    return structs.replace(found.config, engine_args=found.config.engine_args | sizes)


def build_tiny_aligner(target: Path) -> None:
    """Write the model, its tokenizer of one token a byte and its feature extractor to `target`."""
    from safetensors.torch import save_file

    tokenizer = _tokenizer()
    tokenizer.save_pretrained(target)
    extractor = {
        "processor_class": "Qwen3ASRProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "chunk_length": 30,
        "n_fft": 400,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "padding_side": "right",
        "padding_value": 0.0,
        "dither": 0.0,
        "return_attention_mask": True,
    }
    (target / "preprocessor_config.json").write_text(json.dumps(extractor))
    (target / "config.json").write_text(json.dumps(_published_config(tokenizer)))
    model = _model(tokenizer)
    weights = {_published_name(name): tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def reference(directory: Path) -> tuple[Any, Any]:
    """transformers' model with the weights in `directory`, and its processor."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer
    from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = _model(tokenizer)
    stored = load_file(directory / "model.safetensors")
    model.load_state_dict({name: stored[_published_name(name)] for name in model.state_dict()})
    return model.eval(), Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), tokenizer, timestamp_segment_time=SEGMENT_MS)


def reference_times(text: str, file: bytes) -> list[Word]:
    """When transformers says that each word of `text` is said in the recording `file`."""
    import torch

    from app.media.recording import read_recording

    model, processor = reference(tiny_aligner())
    samples = read_recording(file, rate=_RATE, limits=MediaConfig(), seconds=(0, 60))
    words = processor.split_words_for_alignment(text)
    prompt = "<|audio_start|><|audio_pad|><|audio_end|>" + "".join(f"{word}<timestamp><timestamp>" for word in words)
    inputs = processor(text=[prompt], audio=[samples])
    with torch.inference_mode():
        logits = model(**inputs).logits
    mark = model.config.timestamp_token_id
    (found,) = processor.decode_forced_alignment(logits, inputs["input_ids"], [words], mark)
    end = len(samples) / _RATE
    return [Word(part["text"], min(part["start_time"], end), min(part["end_time"], end)) for part in found]


def _published_name(name: str) -> str:
    return next(theirs + name.removeprefix(ours) for ours, theirs in _RENAMED if name.startswith(ours))


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: rank for rank, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=dict(_SPECIAL),
    )


def _text_config(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }


def _published_config(tokenizer: Any) -> dict[str, Any]:
    rotary = {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4]}}
    return {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "timestamp_token_id": tokenizer.convert_tokens_to_ids("<timestamp>"),
        "timestamp_segment_time": SEGMENT_MS,
        "thinker_config": {
            "model_type": "qwen3_forced_aligner",
            "classify_num": CLASSES,
            "audio_token_id": tokenizer.convert_tokens_to_ids("<|audio_pad|>"),
            "audio_start_token_id": tokenizer.convert_tokens_to_ids("<|audio_start|>"),
            "audio_config": _AUDIO,
            "text_config": _text_config(tokenizer) | rotary,
        },
    }


def _model(tokenizer: Any) -> Any:
    import torch
    from transformers.models.qwen3_asr import Qwen3ASRConfig, Qwen3ASRForTokenClassification

    config = Qwen3ASRConfig(
        audio_config=dict(_AUDIO),
        text_config=_text_config(tokenizer)
        | {"model_type": "qwen3", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        audio_token_id=tokenizer.convert_tokens_to_ids("<|audio_pad|>"),
        timestamp_token_id=tokenizer.convert_tokens_to_ids("<timestamp>"),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        num_labels=CLASSES,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    model = Qwen3ASRForTokenClassification(config).to(torch.float32)
    for parameter in model.parameters():  # what starts as ones and zeros would make a model of few opinions
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model
