"""Pipeline classes of diffusers whose signature says less than it should, or something else, by class name."""

from __future__ import annotations

_TEXT_OR_IMAGE = frozenset({"text-to-image", "edit"})
_TO_VIDEO = frozenset({"text-to-video", "image-to-video", "video-to-video"})

MANY_IMAGES = frozenset(
    {
        "BriaFibo2Pipeline",
        "Flux2KleinKVPipeline",
        "Flux2KleinPipeline",
        "Flux2Pipeline",
        "GlmImagePipeline",
        "JoyImageEditPlusPipeline",
        "OmniGenPipeline",
        "QwenImage21Pipeline",
        "QwenImageEditPlusPipeline",
        "ZImageOmniPipeline",
    }
)
"""One picture is made of several."""

OPTIONAL_IMAGE = frozenset(
    {
        "Cosmos2VideoToWorldPipeline",
        "Cosmos2_5_PredictBasePipeline",
        "CosmosVideoToWorldPipeline",
        "Flux2KleinKVPipeline",
        "Flux2KleinPipeline",
        "Flux2Pipeline",
        "FluxKontextPipeline",
        "LTXConditionPipeline",
        "ZImageOmniPipeline",
    }
)
"""The image comes first, or with a strength, and may be left out all the same (some take a video in its place)."""

REQUIRED_IMAGE = frozenset(
    {
        "BriaFiboEditPipeline",
        "CogView4ControlPipeline",
        "FluxControlNetPipeline",
        "FluxControlPipeline",
        "HunyuanDiTControlNetPipeline",
        "HunyuanImageRefinerPipeline",
        "I2VGenXLPipeline",
        "IFSuperResolutionPipeline",
        "LDMSuperResolutionPipeline",
        "LTXI2VLongMultiPromptPipeline",
        "QwenImageControlNetPipeline",
        "SanaControlNetPipeline",
        "StableDiffusion3ControlNetPipeline",
        "StableDiffusionAdapterPipeline",
        "StableDiffusionControlNetPAGPipeline",
        "StableDiffusionControlNetPipeline",
        "StableDiffusionControlNetXSPipeline",
        "StableDiffusionInstructPix2PixPipeline",
        "StableDiffusionLatentUpscalePipeline",
        "StableDiffusionUpscalePipeline",
        "StableDiffusionXLAdapterPipeline",
        "StableDiffusionXLControlNetPAGPipeline",
        "StableDiffusionXLControlNetPipeline",
        "StableDiffusionXLControlNetUnionPipeline",
        "StableDiffusionXLControlNetXSPipeline",
        "StableDiffusionXLInstructPix2PixPipeline",
        "ZImageControlNetPipeline",
    }
)
"""The image comes after the prompt, has a default and may not be left out all the same."""

TASKS = {
    "BriaFiboEditPipeline": frozenset({"edit", "inpaint"}),
    "CosmosVideoToWorldPipeline": frozenset({"image-to-video", "video-to-video"}),
    "Cosmos2VideoToWorldPipeline": frozenset({"image-to-video", "video-to-video"}),
    "Cosmos2_5_PredictBasePipeline": _TO_VIDEO,
    "Cosmos3OmniPipeline": _TO_VIDEO,
    "FluxFillPipeline": frozenset({"inpaint"}),
    "LTXConditionPipeline": _TO_VIDEO,
    "StableCascadeCombinedPipeline": frozenset({"text-to-image"}),
    "UniDiffuserPipeline": frozenset({"text-to-image"}),
}

OUTPUT_FIELDS = dict.fromkeys(
    (
        "KandinskyCombinedPipeline",
        "KandinskyImg2ImgCombinedPipeline",
        "KandinskyInpaintCombinedPipeline",
        "KandinskyV22CombinedPipeline",
        "KandinskyV22Img2ImgCombinedPipeline",
        "KandinskyV22InpaintCombinedPipeline",
        "StableCascadeCombinedPipeline",
        "WuerstchenCombinedPipeline",
    ),
    "images",
)
"""Of classes whose call returns what a pipeline within them returned."""

NOT_SERVED = frozenset(
    {
        "AnimateDiffControlNetPipeline",
        "AnimateDiffSparseControlNetPipeline",
        "AnimateDiffVideoToVideoControlNetPipeline",
        "CogVideoXFunControlPipeline",
        "EasyAnimateControlPipeline",
        "EasyAnimateInpaintPipeline",
        "IFInpaintingSuperResolutionPipeline",
        "IFImg2ImgSuperResolutionPipeline",
        "Kandinsky6SRPipeline",
        "LTX2HDRPipeline",
        "LTX2LatentUpsamplePipeline",
        "LTX2VideoDiffusionDecodePipeline",
        "LTXLatentUpsamplePipeline",
        "ShapEImg2ImgPipeline",
        "ShapEPipeline",
        "StableDiffusion3ControlNetInpaintingPipeline",
        "QwenImageControlNetInpaintPipeline",
        "StableDiffusionDiffEditPipeline",
        "VisualClozeGenerationPipeline",
        "VisualClozePipeline",
        "ZImageControlNetInpaintPipeline",
    }
)
"""They need more than one request holds (latents, a second picture that is no mask), or make views of a solid body."""
