"""--diffusion-streaming-output: the frames of a video as its autoencoder decodes them, some at a time.

Autoencoders that are causal in time call their decoder for one latent frame after the other and join what it returns.
Nothing of that is changed here; each part is looked at as it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models.autoencoders import autoencoder_kl_wan

from app.engines.diffusion import pixels
from app.engines.diffusion.batching import Row

CAUSAL = ("AutoencoderKLWan", "AutoencoderKLCogVideoX")
"""Classes whose decoder is called so, in the order of time, for all rows."""


class Pieces:
    """Of a pipeline that runs one call at a time."""

    def __init__(self, pipe: Any) -> None:
        """
        Raises:
            ValueError: its autoencoder decodes a video as a whole.
        """
        self._vae: Any = getattr(pipe, "vae", None)
        name = type(self._vae).__name__
        if name not in CAUSAL:
            raise ValueError(
                f"--diffusion-streaming-output: {type(pipe).__name__} decodes a video as a whole; those with "
                f"{' or '.join(CAUSAL)} decode some frames at a time. Remove the flag: videos then come when they are "
                "ready"
            )

    @contextmanager
    def during(self, pipe: Any, row: Row) -> Iterator[None]:
        """Tell the row's listener of its frames while the call of `pipe` within decodes them."""

        def decoded(_: Any, __: Any, output: Any) -> None:
            frames = output[0] if isinstance(output, tuple) else output
            row.listener.filmed(row, self._pictures(pipe, frames))

        handle = self._vae.decoder.register_forward_hook(decoded)
        try:
            yield
        finally:
            handle.remove()

    def _pictures(self, pipe: Any, frames: torch.Tensor) -> list[pixels.Pixels]:
        """What the pipeline makes of (1, channels, frames, height, width) when they are joined."""
        if (patch := self._vae.config.get("patch_size")) is not None:
            frames = autoencoder_kl_wan.unpatchify(frames, patch_size=patch)
        (pictures,) = pixels.pictures(pipe.video_processor.postprocess_video(frames.clamp(-1, 1), "pt"))
        return pictures
