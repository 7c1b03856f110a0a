"""Text-to-speech models of stock transformers classes with a million random weights or fewer, made offline.

`build(kind, directory)` writes one as a published model would be. Their sound is noise, and short: none of them ends a
sentence by itself. Equal kinds have equal weights.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PRESETS = ("v2/en_speaker_0", "v2/en_speaker_6")
_LETTERS = string.ascii_lowercase + " '-"


def build(kind: str, directory: Path) -> Path:
    """Write the model `kind` (a key of KINDS) into `directory`, and return that."""
    torch.manual_seed(0)
    directory.mkdir(parents=True, exist_ok=True)
    KINDS[kind](directory)
    return directory


def vits(directory: Path, speakers: int = 1, **tokenizer: Any) -> None:
    """One speaker or many, letters of English; `tokenizer` changes the tokenizer's settings."""
    vocabulary = {letter: index for index, letter in enumerate("|" + _LETTERS)} | {"<unk>": len(_LETTERS) + 1}
    file = directory / "vocab.json"
    file.write_text(json.dumps(vocabulary))
    settings = {"pad_token": "|", "language": "eng", "phonemize": False} | tokenizer
    transformers.VitsTokenizer(str(file), **settings).save_pretrained(directory)
    config = transformers.VitsConfig(
        vocab_size=len(vocabulary),
        num_speakers=speakers,
        speaker_embedding_size=16 if speakers > 1 else 0,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        flow_size=32,
        spectrogram_bins=65,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2,
        posterior_encoder_num_wavenet_layers=2,
        upsample_initial_channel=64,
        upsample_rates=[8, 8, 4],
        upsample_kernel_sizes=[16, 16, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3, 5]],
        depth_separable_num_layers=2,
        duration_predictor_flow_bins=4,
        duration_predictor_num_flows=2,
        duration_predictor_filter_channels=32,
        wavenet_dilation_rate=1,
    )
    transformers.VitsModel(config).save_pretrained(directory)


def speecht5(directory: Path, letters: str = string.printable) -> None:
    """Embeddings of 16 numbers; the vocoder is in vocoder/, and voice.npy is a voice."""
    pieces = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([letters] * 8),
        model_writer=pieces,
        model_type="char",
        vocab_size=80,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (directory / "spm_char.model").write_bytes(pieces.getvalue())
    transformers.SpeechT5Tokenizer(str(directory / "spm_char.model")).save_pretrained(directory)
    config = transformers.SpeechT5Config(
        vocab_size=96,
        hidden_size=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=64,
        speaker_embedding_dim=16,
        speech_decoder_prenet_units=32,
        speech_decoder_postnet_units=32,
    )
    transformers.SpeechT5ForTextToSpeech(config).save_pretrained(directory)
    vocoder = transformers.SpeechT5HifiGanConfig(
        upsample_initial_channel=32,
        initializer_range=0.1,
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3, 5]],
    )
    transformers.SpeechT5HifiGan(vocoder).save_pretrained(directory / "vocoder")
    np.save(directory / "voice.npy", np.linspace(-1, 1, 16, dtype=np.float32))


def bark(directory: Path) -> None:
    """Two presets; four codebooks of sixteen codes, at most 24 semantic tokens a sentence."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.printable.strip()]
    words += [f"##{letter}" for letter in string.ascii_lowercase]
    tokenizer = transformers.BertTokenizer(vocab={word: index for index, word in enumerate(words)})
    sizes = {"block_size": 400, "num_layers": 1, "num_heads": 2, "hidden_size": 16, "initializer_range": 1.0}
    config = transformers.BarkConfig(
        semantic_config={**sizes, "input_vocab_size": 200, "output_vocab_size": 48},
        coarse_acoustics_config={**sizes, "input_vocab_size": 80, "output_vocab_size": 80},
        fine_acoustics_config={
            **sizes,
            "input_vocab_size": 17,
            "output_vocab_size": 17,
            "n_codes_total": 4,
            "n_codes_given": 1,
        },
        codec_config=transformers.EncodecConfig(
            target_bandwidths=[1.2],
            hidden_size=16,
            num_filters=4,
            num_lstm_layers=1,
            codebook_size=16,
        ).to_dict(),
    )
    _with_random_codebooks(transformers.BarkModel(config)).save_pretrained(directory)
    generation = {
        "model_type": "bark",
        "sample_rate": 24_000,
        "codebook_size": 16,
        "semantic_config": {
            "eos_token_id": 40,
            "max_new_tokens": 24,
            "do_sample": True,
            "text_encoding_offset": 48,
            "text_pad_token": 197,
            "semantic_infer_token": 198,
            "semantic_vocab_size": 40,
        },
        "coarse_acoustics_config": {
            "do_sample": True,
            "coarse_semantic_pad_token": 74,
            "coarse_infer_token": 75,
            "max_coarse_history": 60,
        },
        "fine_acoustics_config": {
            "temperature": 0.5,
            "n_fine_codebooks": 4,
            "max_fine_history_length": 64,
            "max_fine_input_length": 128,
        },
    }
    (directory / "generation_config.json").write_text(json.dumps(generation))
    transformers.BarkProcessor(tokenizer, _presets(directory)).save_pretrained(str(directory))


def _presets(directory: Path) -> dict[str, Any]:
    """As files, of which the processor knows the paths only."""
    numbers = np.random.default_rng(0)
    lengths = {"semantic_prompt": (10,), "coarse_prompt": (2, 15), "fine_prompt": (4, 15)}
    listed: dict[str, Any] = {"repo_or_path": str(directory)}
    for name in PRESETS:
        listed[name] = {}
        for part, shape in lengths.items():
            file = f"speaker_embeddings/{name}_{part}.npy"
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            np.save(directory / file, numbers.integers(0, 16, shape))
            listed[name][part] = file
    return listed


def csm(directory: Path) -> None:
    """Four codebooks of 64 codes at 12.5 frames a second, at most 6 frames a sentence."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>", "<|pad|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {token: index for index, token in enumerate([*letters, *special])}
    core = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=special[0], eos_token=special[1], pad_token=special[4]
    )
    tokenizer.add_special_tokens({"additional_special_tokens": special[2:4]})
    extractor = transformers.EncodecFeatureExtractor(feature_size=1, sampling_rate=24_000)
    transformers.CsmProcessor(extractor, tokenizer, chat_template=CSM_TEMPLATE).save_pretrained(directory)
    codec = {
        "model_type": "mimi",
        "hidden_size": 32,
        "num_filters": 8,
        "codebook_size": 64,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 4,
        "num_semantic_quantizers": 1,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "upsample_groups": 32,
    }
    depth = {
        "num_codebooks": 4,
        "backbone_hidden_size": 64,
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 9,
    }
    config = transformers.CsmConfig(
        num_codebooks=4,
        vocab_size=64,
        text_vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        codebook_pad_token_id=63,
        codebook_eos_token_id=62,
        bos_token_id=tokens[special[0]],
        pad_token_id=tokens[special[4]],
        audio_token_id=tokens["<|AUDIO|>"],
        audio_eos_token_id=tokens["<|audio_eos|>"],
        codec_config=codec,
        depth_decoder_config=depth,
    )
    model = transformers.CsmForConditionalGeneration(config)
    model.generation_config.update(do_sample=True, max_new_tokens=6)
    model.depth_decoder.generation_config.update(do_sample=True)
    _with_random_codebooks(model).save_pretrained(directory)


def _with_random_codebooks(model: Any) -> Any:
    """The codebooks of new codecs are zero, so that all codes sound alike."""
    for name, numbers in model.codec_model.named_buffers():
        if name.endswith(("codebook.embed", "codebook.embed_sum")):
            numbers.normal_()
    return model


CSM_TEMPLATE = (
    "{% for message in messages %}{% for content in message['content'] %}"
    "{% if content['type'] == 'text' %}"
    "{{ '<|begin_of_text|>[' + message['role'] + ']' + content['text'] + '<|end_of_text|>' }}"
    "{% else %}{{ '<|AUDIO|><|audio_eos|>' }}{% endif %}{% endfor %}{% endfor %}"
)


def dia(directory: Path) -> None:
    """Four codebooks of 16 codes with a delay of three frames, 12 frames a sentence; the codec is in vocoder/."""
    codec = transformers.DacConfig(
        encoder_hidden_size=8,
        decoder_hidden_size=64,
        downsampling_ratios=[2, 4, 8, 8],
        n_codebooks=4,
        codebook_size=16,
        codebook_dim=4,
        sampling_rate=44_100,
    )
    transformers.DacModel(codec).save_pretrained(directory / "vocoder")
    transformers.DiaTokenizer().save_pretrained(directory)
    transformers.DiaFeatureExtractor(sampling_rate=44_100, hop_length=512).save_pretrained(directory)
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16}
    config = transformers.DiaConfig(
        encoder_config={**sizes, "num_attention_heads": 2, "num_key_value_heads": 2},
        decoder_config={
            **sizes,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "cross_num_attention_heads": 2,
            "cross_head_dim": 16,
            "cross_num_key_value_heads": 2,
            "cross_hidden_size": 32,
            "vocab_size": 20,
            "num_channels": 4,
            "eos_token_id": 16,
            "pad_token_id": 17,
            "bos_token_id": 18,
        },
        delay_pattern=[0, 1, 2, 3],
    )
    model = transformers.DiaForConditionalGeneration(config)
    model.generation_config.update(do_sample=True, guidance_scale=3.0, temperature=1.8, top_k=8, max_length=12)
    model.save_pretrained(directory)


KINDS: dict[str, Callable[[Path], None]] = {
    "vits": vits,
    "vits_many": lambda directory: vits(directory, speakers=3),
    "speecht5": speecht5,
    "bark": bark,
    "csm": csm,
    "dia": dia,
}
