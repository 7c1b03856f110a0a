from __future__ import annotations

import pytest

from app.settings.classnames import output_of


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("image", "StableDiffusion3 FluxKontext Flux2Klein QwenImageEditPlus ZImage LDMTextToImage Cosmos2TextToImage"),
        ("image", "QwenImageLayeredModular Kandinsky5T2I PixArtSigma HunyuanDiT HunyuanImage LongCatImageEdit Sana"),
        (
            "video",
            "Wan WanImageToVideo Wan22Modular LTX LTX2Condition HunyuanVideo15 CogVideoXFunControl Kandinsky5T2V",
        ),
        ("video", "StableVideoDiffusion AnimateDiffSDXL Helios Cosmos3Omni SanaVideo SkyReelsV2DiffusionForcing Mochi"),
        ("audio", "StableAudio StableAudio3AudioToAudio AudioLDM2 MusicLDM AceStep LongCatAudioDiT DanceDiffusion"),
    ],
)
def test_outputs_by_name(output: str, names: str) -> None:
    assert {name: output_of(f"{name}Pipeline") for name in names.split()} == dict.fromkeys(names.split(), output)


def test_a_name_of_no_known_form_says_nothing() -> None:
    assert output_of("Painter") is None
    assert output_of("") is None
