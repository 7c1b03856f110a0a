"""Warnings that libraries give at every start, also where nothing is wrong, and that nobody can do anything about."""

from __future__ import annotations

import logging
import warnings

_LOGGERS = (
    "torchao",  # kernels that were built for another Python or for GPUs do not load on this machine
    "torch.utils._pytree",  # of torchao's enumerations
    "diffusers.quantizers.torchao.torchao_quantizer",  # of checkpoints that torchao of this version cannot have written
    "transformers.utils.import_utils",  # images are prepared by Pillow where torchvision does not import
    "vllm.triton_utils.importing",  # Triton, which the CPU engine never uses, has no kernels for CPUs
)


def silence() -> None:
    """Let these loggers tell errors only. Call it before the libraries are imported."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("transformers.configuration_utils").addFilter(_is_of_use)
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.reduce_op` is deprecated", FutureWarning
    )  # vLLM looks at it


def _is_of_use(record: logging.LogRecord) -> bool:
    """A talker's config holds ids of its thinker's vocabulary, which is larger than its own."""
    return "must be `None` or an integer within the vocabulary" not in record.getMessage()
