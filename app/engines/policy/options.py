"""The engine arguments of a policy stage, typed. No torch: options are read before anything heavy is imported."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from app.engines.arguments import read_arguments
from app.settings.schema import StageConfig

Steps = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class PolicySampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How actions are drawn. `num_inference_steps` of the flow, None for the checkpoint's; `seed` of the noise that
    they are made of, None for another one each time.
    """

    num_inference_steps: Steps | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | None = None


class PolicyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be said about a policy stage.

    `dtype` is auto (float32 on a CPU, elsewhere what the weights are stored in), bfloat16, float16 or float32; `device`
    a torch device, "" for the machine's accelerator, or its CPU if it has none. `revision` and `download_dir` are what
    the model was downloaded from and to; `trust_remote_code` is a permission that no policy needs.
    `default_sampling_params` are the stage's values for requests without their own.
    """

    dtype: str = "auto"
    device: str = ""
    revision: str = ""
    download_dir: str = ""
    trust_remote_code: bool = False
    default_sampling_params: dict[str, Any] = {}

    @property
    def sampling(self) -> PolicySampling:
        """`default_sampling_params`, typed.

        Raises:
            ValueError: there is no such parameter, or its value cannot be.
        """
        try:
            return msgspec.convert(self.default_sampling_params, PolicySampling)
        except msgspec.ValidationError as error:
            raise ValueError(f"default_sampling_params: {error}") from None


def read_options(stage: StageConfig) -> PolicyOptions:
    """The stage's engine arguments and sampling defaults, checked.

    Raises:
        ValueError: an argument is unknown or has a value that cannot be; the message names stage and argument.
    """
    options = read_arguments(stage, PolicyOptions, "policy")
    try:
        _ = options.sampling
    except ValueError as error:
        raise ValueError(f"stage {stage.stage_id} ({stage.name}): {error}") from None
    return options
