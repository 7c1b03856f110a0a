"""The talker of Qwen2.5-Omni: one codebook, 50 codes a second, conditioned on what the thinker made of each token."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from app.cluster.tensors import Tensor
from app.engines.omni.speakers import SAMPLE_RATE, qwen2_5_speakers
from app.engines.omni.talker.checkpoint import EMBEDDINGS, read_rows
from app.engines.omni.talker.conditioning import WIDTH
from app.engines.omni.talker.family import Chunk
from app.engines.omni.talker.handover import read_handover
from app.protocol.speechtask import SpeechCard

ARCHITECTURE = "Qwen2_5OmniTalker"
_SAMPLING = {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "repetition_penalty": 1.05, "max_tokens": 4096}
"""Of transformers' generate; published checkpoints say nothing of the talker."""


def talker_config(config: Any) -> Any:
    """The talker's part of the whole model's configuration, as vLLM needs it; any other configuration as it is."""
    talker = getattr(config, "talker_config", None)
    if talker is None:  # vLLM tries a function of overrides with an empty configuration first
        return config
    talker = copy.deepcopy(talker)
    talker.architectures = [ARCHITECTURE]
    talker.qkv_bias, talker.attention_bias = True, False  # of LlamaModel: biases on the way in, none on the way out
    talker.bos_token_id = talker.eos_token_id = talker.pad_token_id = None  # they are the thinker's, no codec ids
    talker.codec_ids = config.token2wav_config.dit_config.num_embeds + 1
    setattr(talker, WIDTH, talker.embedding_size + 1)
    return talker


class Qwen2_5Talker:  # noqa: N801
    """Implements app.engines.omni.talker.family.TalkerFamily."""

    architecture = ARCHITECTURE
    sampling: Mapping[str, Any] = _SAMPLING
    engine_args: Mapping[str, Any] = {}

    def __init__(self, model: str) -> None:
        """Read what is beside the weights.

        Raises:
            ValueError: something is missing that the talker needs.
            OSError: a file of the model is missing or cannot be read.
        """
        directory = Path(model)
        talker = _talker_of(directory)
        speakers = {name: int(speaker["bos_token"]) for name, speaker in qwen2_5_speakers(directory).items()}
        self.hf_overrides: Callable[[Any], Any] = talker_config
        self.stop_token_ids: Sequence[int] = [talker["tts_codec_pad_token_id"], talker["tts_codec_end_token_id"]]
        self.card = SpeechCard(
            family="Qwen2.5-Omni",
            voices=list(speakers),
            default_voice=next(iter(speakers)),
            sample_rate=SAMPLE_RATE,
        )
        self._prompt_ids = (
            talker["tts_codec_mask_token_id"],
            talker["tts_codec_pad_token_id"],
            talker["tts_codec_start_token_id"],
        )
        ids = [talker["tts_text_end_token_id"], talker["tts_text_pad_token_id"], *speakers.values()]
        rows = read_rows(directory, EMBEDDINGS, ids)
        self._ending = rows[:2]
        self._openings = dict(zip(speakers, rows[2:], strict=True))

    def open(self, scratch: str) -> None:
        """Nothing: all that it hears and says passes through vLLM."""

    def begin(self, request_id: str, voice: str) -> Qwen2_5Utterance:
        """A request's part."""
        return Qwen2_5Utterance(self._prompt_ids, self._openings[voice], self._ending, self.stop_token_ids)

    def close(self) -> None:
        """Nothing is held."""


class Qwen2_5Utterance:  # noqa: N801
    """Implements app.engines.omni.talker.family.Utterance.

    The prompt is the thinker's, a row that tells the voice, and the first row of the reply. Each later row of the reply
    goes with one codec id; after them come the end of the text and its padding, which the model repeats for ever.
    """

    def __init__(
        self, prompt_ids: tuple[int, int, int], opening: torch.Tensor, ending: torch.Tensor, stops: Sequence[int]
    ) -> None:
        """`prompt_ids`: codec ids that stand at the thinker's prompt, the voice's row and the reply's first row."""
        self.extra_args: dict[str, Any] = {}
        self._prompt_ids = prompt_ids
        self._opening = opening
        self._ending = ending
        self._stops = frozenset(stops)
        self._positions: torch.Tensor | None = None
        self._fresh: list[torch.Tensor] = []
        self._count = 0
        self._begun = self._ended = self._finished = False

    def feed(self, tensors: Mapping[str, Tensor]) -> None:
        """Take one handover.

        Raises:
            EngineError: it is not what the thinker of this checkpoint makes.
        """
        given = read_handover(tensors, len(self._opening), first=self._positions is None)
        self._positions = given.positions if self._positions is None else self._positions
        self._fresh.append(given.rows)
        self._count += len(given.rows)

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True

    def take(self) -> Chunk | None:
        """The next chunk; None where none can be made yet, or none is left."""
        if self._finished:
            return None
        if not self._begun:
            return self._first()
        rows = self._taken()
        return Chunk(_gated(rows, 1), last=self._ended) if len(rows) else None

    def _first(self) -> Chunk | None:
        if self._positions is None or self._count <= (length := self._positions.shape[1]):
            return None
        self._begun = True
        rows = self._taken()
        opening = self._opening.to(rows.dtype)[None]
        mask, pad, start = self._prompt_ids
        return Chunk(
            torch.cat((_gated(rows[:length], 0), _gated(opening, 1), _gated(rows[length:], 1))),
            [mask] * length + [pad, start],
            self._positions,
            last=self._ended,
        )

    def _taken(self) -> torch.Tensor:
        """Rows that have come since, and the end where that has come."""
        rows = self._fresh
        self._fresh = []
        if self._ended:
            self._finished = True
            rows.append(self._ending.to(rows[0].dtype) if rows else self._ending)
        return torch.cat(rows) if rows else self._ending[:0]

    async def codes(self, token_ids: Sequence[int]) -> torch.Tensor | None:
        """int32 [n]: what was sampled is what is said, but for the ids that end it."""
        said = [token for token in token_ids if token not in self._stops]
        return torch.tensor(said, dtype=torch.int32) if said else None

    def close(self) -> None:
        """Nothing is held."""


def _gated(rows: torch.Tensor, gate: int) -> torch.Tensor:
    """With the column that says whether the codec embedding is added."""
    return torch.nn.functional.pad(rows, (0, 1), value=gate)


def _talker_of(model: Path) -> dict[str, Any]:
    config = json.loads((model / "config.json").read_bytes())
    talker = config.get("talker_config")
    if not talker:
        raise ValueError(f"{model} has no talker: its config.json has no talker_config")
    from transformers import Qwen2_5OmniTalkerConfig

    return dict(Qwen2_5OmniTalkerConfig(**talker).to_dict())  # with what a file leaves to the class
