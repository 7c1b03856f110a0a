"""What transformers' omni models answer to a chat, in text and in sound: the oracle of all stages together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.engines.omni.code2wav.decoding import qwen2_5_sound, qwen3_sound
from tests.parity import qwen2_5_talker, qwen3_talker
from tests.parity.thinking import Chat, Oracle, Thought
from tests.tiny_omni import SPEAKERS

VOICE = SPEAKERS[0]
SEED = 7
"""Of the noise that Qwen2.5-Omni's sound is made of."""
TALKER: dict[str, dict[str, Any]] = {
    "qwen2_5_omni": {"temperature": 0, "repetition_penalty": 1.0, "max_tokens": 48},
    "qwen3_omni_moe": {"temperature": 0, "repetition_penalty": qwen3_talker.PENALTY, "max_tokens": 48},
}
"""The sampling parameters of what `speak` says."""


class Spoken(NamedTuple):
    """The text, and samples at 24 kHz from -1 to 1 of so many codec frames."""

    text: str
    sound: NDArray[np.float32]
    frames: int


class Speaker:
    """transformers' model of the checkpoint `kind` (of tests.tiny_omni) in `directory`."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind = kind
        self._directory = directory
        self._thinker = Oracle(kind, directory)

    def write(self, chat: Chat, tokens: int) -> str:
        """The likeliest answer of at most so many tokens."""
        return self._thinker.think(chat, tokens).text

    def speak(self, chat: Chat, tokens: int) -> Spoken:
        """The same, said in VOICE; transformers' Qwen3-Omni cannot where there are a sound and a picture."""
        thought = self._thinker.think(chat, tokens)
        say = self._qwen3 if self._kind.startswith("qwen3") else self._qwen2_5
        codes, sound = say(thought, chat)
        return Spoken(thought.text, sound, len(codes))

    def _qwen2_5(self, thought: Thought, chat: Chat) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        talker = qwen2_5_talker.Reference(self._directory)
        inputs = self._thinker.inputs(chat)
        heard = qwen2_5_talker.Thought(inputs, thought.ids, thought.rows, thought.positions)
        limit = TALKER[self._kind]["max_tokens"]
        codes = np.array(talker.talk(heard, VOICE, limit=limit), np.int32)
        return codes, qwen2_5_sound(self._directory, codes, SEED)

    def _qwen3(self, thought: Thought, chat: Chat) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        talker = qwen3_talker.Reference(self._directory)
        computed = thought.ids[: len(thought.rows)]
        heard = qwen3_talker.Thought(
            computed,
            thought.rows,
            thought.rows,
            thought.positions,
            talker.sensed(computed).nonzero()[:, 0].tolist(),
            self._thinker.inputs(chat).get("image_grid_thw"),
        )
        limit = TALKER[self._kind]["max_tokens"]
        codes = np.array(talker.talk(heard, VOICE.lower(), limit), np.int32)
        return codes, qwen3_sound(self._directory, codes)
