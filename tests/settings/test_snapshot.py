from __future__ import annotations

from app.settings.snapshot import diffusion_files, language_model_files

STABLE_DIFFUSION = [
    ".gitattributes",
    "README.md",
    "model_index.json",
    "v1-5-pruned.safetensors",
    "v1-5-pruned.ckpt",
    "example.png",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "text_encoder/model.fp16.safetensors",
    "text_encoder/pytorch_model.bin",
    "tokenizer/vocab.json",
    "tokenizer/merges.txt",
    "unet/config.json",
    "unet/diffusion_pytorch_model-00001-of-00002.safetensors",
    "unet/diffusion_pytorch_model-00002-of-00002.safetensors",
    "unet/diffusion_pytorch_model.safetensors.index.json",
    "unet/diffusion_pytorch_model.fp16-00001-of-00002.safetensors",
    "unet/diffusion_pytorch_model.fp16-00002-of-00002.safetensors",
    "unet/diffusion_pytorch_model.safetensors.fp16.index.json",
    "unet/diffusion_pytorch_model.non_ema.bin",
    "unet/model.onnx",
    "vae/config.json",
    "vae/diffusion_pytorch_model.bin",
    "vae/diffusion_pytorch_model.fp16.bin",
    "vae_decoder/openvino_model.bin",
]
COMPONENTS = ["scheduler", "text_encoder", "tokenizer", "unet", "vae"]


def weights(variant: str) -> list[str]:
    chosen = diffusion_files(STABLE_DIFFUSION, COMPONENTS, variant)
    return [name for name in chosen if name.endswith((".safetensors", ".bin", ".ckpt", ".onnx"))]


def test_each_component_comes_once_and_the_whole_model_in_one_file_does_not() -> None:
    assert weights("") == [
        "text_encoder/model.safetensors",
        "unet/diffusion_pytorch_model-00001-of-00002.safetensors",
        "unet/diffusion_pytorch_model-00002-of-00002.safetensors",
        "vae/diffusion_pytorch_model.bin",
    ]


def test_a_variant_is_taken_where_there_is_one() -> None:
    assert weights("fp16") == [
        "text_encoder/model.fp16.safetensors",
        "unet/diffusion_pytorch_model.fp16-00001-of-00002.safetensors",
        "unet/diffusion_pytorch_model.fp16-00002-of-00002.safetensors",
        "vae/diffusion_pytorch_model.fp16.bin",
    ]
    assert weights("bf16") == weights("")


def test_everything_that_is_no_weight_comes_with_them() -> None:
    chosen = set(diffusion_files(STABLE_DIFFUSION, COMPONENTS))
    assert {name for name in STABLE_DIFFUSION if name.endswith((".json", ".txt", ".md"))} <= chosen
    assert not chosen & {"example.png", "vae_decoder/openvino_model.bin"}


def test_a_component_that_has_only_a_variant_comes_in_it() -> None:
    files = ["model_index.json", "vae/model.fp16.safetensors", "vae/model.fp16.bin"]
    assert diffusion_files(files, ["vae"]) == ["model_index.json", "vae/model.fp16.safetensors"]


def test_numbers_before_the_variant_are_numbers_too() -> None:
    files = ["t/model-00001-of-00001.fp16.safetensors", "t/model-00001-of-00001.safetensors"]
    assert diffusion_files(files, ["t"], "fp16") == files[:1]
    assert diffusion_files(files, ["t"]) == files[1:]


def test_a_modular_pipeline_names_no_folders() -> None:
    files = ["modular_model_index.json", "transformer/model.safetensors", "transformer/model.bin"]
    assert diffusion_files(files, []) == files[:2]


def test_language_models() -> None:
    files = ["config.json", "model.safetensors", "pytorch_model.bin", "original/model.pth", "onnx/model.onnx", "x.gguf"]
    assert language_model_files(files) == ["config.json", "model.safetensors"]
    assert language_model_files(["config.json", "pytorch_model.bin"]) == ["config.json", "pytorch_model.bin"]


def test_the_speakers_of_an_omni_model_are_no_weights() -> None:
    files = [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "chat_template.json",
        "spk_dict.pt",
        "x.pt",
    ]
    assert language_model_files(files) == files[:-1]


def test_speech_models() -> None:
    bark = ["config.json", "pytorch_model.bin", "text_2.pt", "speaker_embeddings/v2/en_speaker_6_fine_prompt.npy"]
    assert language_model_files(bark) == [name for name in bark if name != "text_2.pt"]
    assert language_model_files(["config.json", "old.pt"]) == ["config.json", "old.pt"]
