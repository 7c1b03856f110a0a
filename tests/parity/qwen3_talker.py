"""What transformers' Qwen3-Omni says of a thought: the oracle of the talker, step by step, greedily.

`generate` of transformers 5.19 drops an attention mask of ones; so its forward pass is called here, with positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration, RepetitionPenaltyLogitsProcessor

from app.cluster.tensors import Tensor
from app.engines.omni.torchtensors import from_torch

Frames = list[list[int]]
CONVERSATIONS: dict[str, list[tuple[str, str]]] = {
    "text": [("system", "Be brief."), ("user", "Is it so?")],
    "history": [("system", "Be brief."), ("user", "Hello."), ("assistant", "Hello to you."), ("user", "Is it so?")],
    "audio": [("user", "What is <audio>this?"), ("assistant", "A bell."), ("user", "And <audio> that?")],
    "image": [("system", "Be brief."), ("user", "See <image>."), ("assistant", "Yes."), ("user", "<image>And?")],
    "long": [("user", "And then I said to all who listened: " * 4), ("assistant", "No."), ("user", "<audio>Yes!")],
}
REPLY = "Well, a short answer."
PENALTY = 1.05
_MEDIA = {
    "<audio>": "<|audio_start|>" + "<|audio_pad|>" * 13 + "<|audio_end|>",
    "<image>": "<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>",
}
_GRID = [1, 4, 6]


@dataclass
class Thought:
    """Of a prompt of P tokens and a reply whose first K were computed: `ids` [P + K], `embeddings` and `hidden`
    [P + K, H], `positions` [3, P] as vLLM gives the thinker, `sensed` where sounds and pictures are, `grid` of these.
    """

    ids: torch.Tensor
    embeddings: torch.Tensor
    hidden: torch.Tensor
    positions: torch.Tensor
    sensed: list[int]
    grid: torch.Tensor | None

    @property
    def prompt(self) -> int:
        return self.positions.shape[1]

    def without(self, position: int) -> Thought:
        """As if nothing had been thought there."""
        made = replace(self, embeddings=self.embeddings.clone(), hidden=self.hidden.clone())
        made.embeddings[position] = made.hidden[position] = 0
        return made

    def handovers(self, ends: list[int]) -> list[dict[str, Tensor]]:
        """As a thinker that stops for a moment after each of the `ends` and after its last row would hand it on."""
        rows = self.embeddings.clone()
        rows[self.sensed] = self.hidden[self.sensed]
        made = [
            {"token_ids": from_torch(self.ids[start:end].int()), "rows": from_torch(rows[start:end])}
            for start, end in pairwise([0, *ends, len(rows)])
        ]
        made[0]["mrope_positions"] = from_torch(self.positions.int())
        return made


class Reference:
    """transformers' model of the checkpoint in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
        self.config = self.model.config
        self._tokenizer = AutoTokenizer.from_pretrained(directory)

    @torch.no_grad()
    def thought(self, name: str) -> Thought:
        """Of one of the CONVERSATIONS. What the thinker's layers make is noise: none of them is asked."""
        written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in CONVERSATIONS[name])
        for mark, tokens in _MEDIA.items():
            written = written.replace(mark, tokens)
        prompt = torch.tensor(self._tokenizer(written + "<|im_start|>assistant\n").input_ids)
        ids = torch.cat((prompt, torch.tensor(self._tokenizer(REPLY).input_ids)))
        embeddings = self.model.thinker.get_input_embeddings()(ids)
        hidden = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(len(ids)))
        images = written.count("<|vision_start|>")
        grid = torch.tensor([_GRID] * images) if images else None
        positions = torch.arange(len(prompt)).expand(3, -1)
        if grid is not None:
            mask = torch.ones(1, len(prompt))
            positions = self.model.thinker.get_rope_index(prompt[None], grid, attention_mask=mask)[0][:, 0].long()
        return Thought(ids, embeddings, hidden, positions, self.sensed(ids).nonzero()[:, 0].tolist(), grid)

    def sensed(self, ids: torch.Tensor) -> torch.Tensor:
        """Where sounds and pictures are."""
        thinker = self.config.thinker_config
        return torch.isin(ids, torch.tensor([thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id]))

    @torch.no_grad()
    def talk(self, thought: Thought, voice: str, limit: int) -> Frames:
        """The likeliest frames, at most so many."""
        talker, config = self.model.talker, self.config.talker_config
        inputs, trailing, padding = self._conditioning(thought, config.speaker_id[voice])
        positions = self._positions(thought, inputs.shape[1])
        frames: Frames = []
        cache = None
        while len(frames) < limit:
            out = talker(
                inputs_embeds=inputs,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                output_hidden_states=True,
                generation_step=len(frames),
            )
            cache = out.past_key_values
            code = self._likeliest(out.logits[:, -1], [frame[0] for frame in frames])
            if code == config.codec_eos_token_id:
                break
            first = talker.get_input_embeddings()(torch.tensor(code))
            frames.append([code, *residual_codes(talker.code_predictor, out.hidden_states[0][-1][0, -1], first)])
            heard = first + self._embedded(frames[-1][1:])
            inputs = (heard + (trailing[len(frames) - 1] if len(frames) <= len(trailing) else padding))[None, None]
            positions = positions.max().expand(3, 1, 1) + 1
        return frames

    def _embedded(self, codes: list[int]) -> torch.Tensor:
        tables = self.model.talker.code_predictor.get_input_embeddings()
        return torch.stack([table(torch.tensor(code)) for table, code in zip(tables, codes, strict=True)]).sum(0)

    def _likeliest(self, logits: torch.Tensor, said: list[int]) -> int:
        history = torch.tensor([said], dtype=torch.long)
        logits = RepetitionPenaltyLogitsProcessor(PENALTY)(history, logits)[0]
        stop = self.config.talker_config.codec_eos_token_id
        ending = logits[stop].clone()
        logits[-1024:] = -torch.inf
        logits[stop] = ending
        return int(logits.argmax())

    def _conditioning(self, thought: Thought, speaker: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The prompt [1, n, hidden], what is added to the frames after it [m, hidden], what from then on [hidden]."""
        config, model = self.config, self.model
        length = len(thought.ids)
        user = model._get_talker_user_parts(
            0, length, self.sensed(thought.ids)[None], thought.hidden[None], thought.embeddings[None]
        )
        own = torch.tensor([[config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]])
        bos, eos, padding = model.talker.text_projection(model.thinker.get_input_embeddings()(own)).chunk(3, dim=1)
        opening, _, trailing = model._get_talker_assistant_parts(
            self._turns(thought, config.assistant_token_id)[-1].start,
            length,
            speaker,
            thought.embeddings[None],
            padding,
            bos,
            eos,
        )
        return torch.cat((user[:, self._asked(thought)], opening), dim=1), trailing[0], padding[0, 0]

    def _turns(self, thought: Thought, role: int) -> list[range]:
        ids = thought.ids[: thought.prompt].tolist()
        starts = [index for index, token in enumerate(ids) if token == self.config.im_start_token_id]
        return [range(start, end) for start, end in pairwise([*starts, len(ids)]) if ids[start + 1] == role]

    def _asked(self, thought: Thought) -> list[int]:
        return [position for turn in self._turns(thought, self.config.user_token_id) for position in turn]

    def _positions(self, thought: Thought, length: int) -> torch.Tensor:
        """[3, 1, length] of the talker's prompt: transformers counts them anew, of what is left of the thinker's."""
        if thought.grid is None:
            return torch.arange(length).expand(3, 1, -1)
        kept = thought.ids[self._asked(thought)]
        ids = torch.cat((kept, torch.full((length - len(kept),), self.config.tts_pad_token_id)))[None]
        mask = torch.ones_like(ids)
        positions: Any = self.model.talker.get_rope_index(ids, image_grid_thw=thought.grid, attention_mask=mask)[0]
        return positions.long()


@torch.no_grad()
def residual_codes(predictor: Any, hidden: torch.Tensor, first: torch.Tensor) -> list[int]:
    """The likeliest other codes of a frame, of a last hidden row and the embedding of its first code, [hidden] each."""
    inputs: dict[str, Any] = {"inputs_embeds": torch.stack((hidden, first))[None]}
    codes: list[int] = []
    cache = None
    for step in range(predictor.config.num_code_groups - 1):
        out = predictor(**inputs, past_key_values=cache, use_cache=True, generation_steps=step)
        cache = out.past_key_values
        codes.append(int(out.logits[0, -1].argmax()))
        inputs = {"input_ids": torch.tensor([codes[-1:]])}
    return codes
