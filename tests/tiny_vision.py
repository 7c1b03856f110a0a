"""A tiny Idefics3 with random weights, which sees images; of vLLM's such models one that needs no torchvision."""

from __future__ import annotations

from pathlib import Path

from tests.tiny import _cached

_VERSION = 1
_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}assistant: "
)


def tiny_idefics3() -> Path:
    """Its directory, made on first use and shared by all test processes of this user."""
    return _cached(f"idefics3-{_VERSION}", build_tiny_idefics3)


def build_tiny_idefics3(target: Path) -> None:
    """Write the model to `target`: two layers each for images (28 pixels square, one token) and for text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessor,
        Idefics3Processor,
        PreTrainedTokenizerFast,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: rank for rank, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"],
    )
    edge = {"longest_edge": 28}
    images = Idefics3ImageProcessor(size=edge, max_image_size=edge, do_image_splitting=False)
    Idefics3Processor(images, tokenizer, image_seq_len=1, chat_template=_TEMPLATE).save_pretrained(target)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2}
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
        vision_config=shape | {"hidden_size": 32, "intermediate_size": 64, "image_size": 28, "patch_size": 14},
        text_config=shape | text,
    )
    torch.manual_seed(0)
    Idefics3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(target)
