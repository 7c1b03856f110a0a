"""What transformers' omni models think of a chat, and tell their talkers of it: the oracle of the thinker."""

from __future__ import annotations

import base64
import wave
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from app.engines.omni.processors import Qwen2_5OmniWithoutVideos, Qwen3OmniMoeWithoutVideos

_RATE = 16_000


@dataclass
class Chat:
    """A user's message with what it shows and lets hear; `text` holds <image> and <audio> where they belong."""

    text: str
    image: Image.Image | None = None
    audio: np.ndarray[Any, np.dtype[np.float32]] | None = None

    def messages(self) -> list[dict[str, Any]]:
        """As a client sends it."""
        parts: list[dict[str, Any]] = []
        if self.audio is not None:
            parts.append({"type": "input_audio", "input_audio": {"data": _wav(self.audio), "format": "wav"}})
        if self.image is not None:
            parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_png(self.image)}"}})
        return [{"role": "user", "content": [*parts, {"type": "text", "text": self.text}]}]


def chats() -> dict[str, Chat]:
    """One of each kind of input, and one of all."""
    numbers = np.random.default_rng(3)
    samples = 112 * 160  # whole frames: vLLM fills up what Qwen3-Omni hears of the last one, transformers leaves it out
    sound = (numbers.normal(0, 0.1, samples) + np.sin(np.arange(samples) / 20) / 3).astype(np.float32)
    sound = np.round(sound.clip(-1, 1) * 32_767).astype(np.int16).astype(np.float32) / 32_768
    image = Image.fromarray(np.random.default_rng(4).integers(0, 256, (112, 168, 3), dtype=np.uint8))
    return {
        "text": Chat("Tell me of the long road to the sea, and of all who went there before us."),
        "audio": Chat("Who sings here?", audio=sound),
        "image": Chat("Who sings here?", image=image),
        "all": Chat("What is this?", image=image, audio=sound),
    }


def _wav(samples: np.ndarray[Any, Any]) -> str:
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(_RATE)
        writer.writeframes(np.round(samples * 32_768).astype("<i2").tobytes())
    return base64.b64encode(file.getvalue()).decode()


def _png(image: Image.Image) -> str:
    file = BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@dataclass
class Thought:
    """Of a prompt of P tokens and a reply of K: `ids` [P + K], `rows` [P + K - 1, H], `positions` [3, P], `text`."""

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    text: str


class Oracle:
    """transformers' model of the checkpoint `kind` (of tests.tiny_omni) in `directory`."""

    def __init__(self, kind: str, directory: Path) -> None:
        third = kind.startswith("qwen3")
        processor = Qwen3OmniMoeWithoutVideos if third else Qwen2_5OmniWithoutVideos
        model = (
            transformers.Qwen3OmniMoeForConditionalGeneration
            if third
            else transformers.Qwen2_5OmniForConditionalGeneration
        )
        self._processor = processor.from_pretrained(directory)
        whole = model.from_pretrained(directory, dtype=torch.float32).eval()
        self._thinker = whole.thinker
        self._layer = whole.config.talker_config.accept_hidden_layer if third and whole.has_talker else None

    @torch.no_grad()
    def think(self, chat: Chat, tokens: int) -> Thought:
        """Greedily, until the end or so many tokens."""
        inputs = self.inputs(chat)
        ids = inputs["input_ids"]
        answer = self._thinker.generate(
            **inputs,
            max_new_tokens=tokens,
            eos_token_id=self._processor.tokenizer.eos_token_id,
            do_sample=False,
            output_hidden_states=True,
            return_dict_in_generate=True,
        )
        sensed = torch.isin(ids[0], torch.tensor(self._placeholders()))
        embeddings = torch.cat([step[0][0] for step in answer.hidden_states])
        if self._layer is None:
            embeddings[: len(sensed)][sensed] = 0
            rows = torch.cat([step[-1][0] for step in answer.hidden_states]) + embeddings
        else:
            rows = embeddings
            rows[: len(sensed)][sensed] = answer.hidden_states[0][self._layer][0][sensed]
        new = answer.sequences[0, ids.shape[1] :]
        text = self._processor.tokenizer.decode(new, skip_special_tokens=True)
        return Thought(answer.sequences[0], rows, self._positions(inputs), text)

    def inputs(self, chat: Chat) -> dict[str, torch.Tensor]:
        """As the processor makes them."""
        template = self._processor.tokenizer.apply_chat_template
        text = template(chat.messages(), add_generation_prompt=True, tokenize=False)
        made = self._processor(
            text=text,
            images=None if chat.image is None else [chat.image],
            audio=None if chat.audio is None else [chat.audio],
            return_tensors="pt",
        )
        return dict(made)

    def _placeholders(self) -> list[int]:
        tokenizer = self._processor.tokenizer
        return list(tokenizer.convert_tokens_to_ids([tokenizer.audio_token, tokenizer.image_token]))

    def _positions(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        heard = inputs.get("feature_attention_mask")
        positions, _ = self._thinker.get_rope_index(
            inputs["input_ids"],
            image_grid_thw=inputs.get("image_grid_thw"),
            attention_mask=inputs["attention_mask"],
            audio_seqlens=None if heard is None else heard.sum(1),
        )
        made: torch.Tensor = positions[:, 0].long()
        return made
