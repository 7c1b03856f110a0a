"""Tokenizers and text encoders of a few thousand weights, made offline: the text half of tests.tiny_diffusion."""

from __future__ import annotations

import json
import string
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SENTENCES = (
    "a red circle on a blue background",
    "a photo of an astronaut riding a horse",
    "make it green, low quality, blurry",
    "the sound of a hammer that hits wood, hello world",
    "Describe the color, shape, size, texture, quantity and spatial relationships of the objects in the image",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] if message['content'] is string else message['content'][0]['text'] }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QWEN_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def clip_tokenizer() -> Any:
    """CLIP's kind, 77 tokens at most; any text falls back to bytes."""
    vocabulary, merges = _byte_pairs(transformers.CLIPTokenizer(), suffix="</w>")
    for token in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[token] = len(vocabulary)
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)


def t5_tokenizer(length: int = 64) -> Any:
    """T5's kind: the words of SENTENCES, and every printable character."""
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -4.0) for word in words] + [(letter, -6.0) for letter in sorted(string.printable.strip())]
    return transformers.T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=length)


def qwen_tokenizer() -> Any:
    """Qwen2's kind with its special tokens and a chat template."""
    vocabulary, merges = _byte_pairs(transformers.Qwen2Tokenizer(), suffix="")
    for token in _QWEN_SPECIAL:
        vocabulary[token] = len(vocabulary)
    tokenizer = transformers.Qwen2Tokenizer(
        vocab=vocabulary,
        merges=merges,
        model_max_length=2048,
        additional_special_tokens=list(_QWEN_SPECIAL[1:]),
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def glm_image_tokenizer() -> Any:
    """GLM-Image's kind: the tokens between which the sizes of a picture stand, by name."""
    names = {"image_token": "<|image|>", "grid_bos_token": "<|dit_start|>", "grid_eos_token": "<|dit_end|>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer().backend_tokenizer,
        extra_special_tokens=names,
        bos_token="<sop>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )
    tokenizer.add_special_tokens({"bos_token": "<sop>", **names})
    return tokenizer


def _byte_pairs(kind: Any, suffix: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A byte-level BPE of SENTENCES that splits text as `kind` does."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix=suffix, continuing_subword_prefix=""))
    tokenizer.normalizer = kind._tokenizer.normalizer
    tokenizer.pre_tokenizer = kind._tokenizer.pre_tokenizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ending = {"end_of_word_suffix": suffix} if suffix else {}
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=[], initial_alphabet=alphabet, show_progress=False, **ending
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    for letter in alphabet if suffix else ():
        vocabulary.setdefault(letter + suffix, len(vocabulary))
    return vocabulary, [tuple(merge) for merge in model["merges"]]


def clip_encoder(tokenizer: Any, projection: int = 0) -> Any:
    """32 wide; with `projection`, the variant whose pooled output is that wide."""
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=tokenizer.model_max_length,
        projection_dim=projection or 32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel)(config)


def t5_encoder(tokenizer: Any, width: int = 32, multilingual: bool = False) -> Any:
    """T5, or UMT5 where `multilingual`."""
    config_class, model_class = (
        (transformers.UMT5Config, transformers.UMT5EncoderModel)
        if multilingual
        else (transformers.T5Config, transformers.T5EncoderModel)
    )
    config = config_class(
        vocab_size=len(tokenizer),
        d_model=width,
        d_ff=2 * width,
        d_kv=8,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        eos_token_id=1,
    )
    return model_class(config)


def qwen3_encoder(tokenizer: Any, with_head: bool) -> Any:
    config = transformers.Qwen3Config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=len(tokenizer),
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )
    return (transformers.Qwen3ForCausalLM if with_head else transformers.Qwen3Model)(config)


def qwen_vl_encoder(tokenizer: Any) -> Any:
    """Qwen2.5-VL: sees images in patches of 14 pixels."""
    identity = tokenizer.convert_tokens_to_ids
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": len(tokenizer),
            "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2], "type": "mrope"},
            "rope_theta": 1e6,
            "max_position_embeddings": 4096,
            "bos_token_id": identity("<|endoftext|>"),
            "eos_token_id": identity("<|im_end|>"),
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [1],
        },
        image_token_id=identity("<|image_pad|>"),
        video_token_id=identity("<|video_pad|>"),
        vision_start_token_id=identity("<|vision_start|>"),
        vision_end_token_id=identity("<|vision_end|>"),
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)
