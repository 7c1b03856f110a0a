"""What transformers' Qwen2.5-Omni thinks of a prompt and says of that: the oracle of the talker, step by step.

`generate` of transformers 5.19 drops an attention mask of ones, and its talker then leaves out the codec's own
embeddings and the thinker's positions; so its forward pass is called here with the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5OmniForConditionalGeneration, RepetitionPenaltyLogitsProcessor

from app.cluster.tensors import Tensor
from app.engines.omni.torchtensors import from_torch

Inputs = dict[str, torch.Tensor]


@dataclass
class Thought:
    """What the thinker hands on of `inputs`: `ids` [P + K], `rows` [P + K - 1, H], `positions` [3, P]."""

    inputs: Inputs
    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor

    @property
    def prompt(self) -> int:
        return self.positions.shape[1]

    def handovers(self, ends: list[int]) -> list[dict[str, Tensor]]:
        """As a thinker that stops for a moment after each of the `ends` and after its last row would hand it on."""
        bounds = [0, *[end for end in ends if end < len(self.rows)], len(self.rows)]
        made = []
        for start, end in pairwise(bounds):
            tensors = {
                "token_ids": from_torch(self.ids[start:end].int()),
                "rows": from_torch(self.rows[start:end]),
            }
            if start == 0:
                tensors["mrope_positions"] = from_torch(self.positions.int())
            made.append(tensors)
        return made


class Reference:
    """transformers' model of the checkpoint in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.model = Qwen2_5OmniForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
        self.config = self.model.config.thinker_config

    def inputs(self, kind: str) -> Inputs:
        """A prompt of the kind "text", "audio" or "image", all noise, of which there is something to say."""
        numbers = torch.Generator().manual_seed(4)
        text = torch.randint(0, 256, (24,), generator=numbers).tolist()
        config = self.config
        match kind:
            case "audio":
                heard = torch.randn(1, 128, 200, generator=numbers)
                ids = [config.audio_start_token_id, *[config.audio_token_index] * 50, config.audio_end_token_id]
                media = {"input_features": heard, "feature_attention_mask": torch.ones(1, 200, dtype=torch.long)}
            case "image":
                seen = torch.randn(8 * 12, 3 * 2 * 14 * 14, generator=numbers)
                ids = [config.vision_start_token_id, *[config.image_token_index] * 24, config.vision_end_token_id]
                media = {"pixel_values": seen, "image_grid_thw": torch.tensor([[1, 8, 12]])}
            case _:
                ids, media = [], {}
        return {"input_ids": torch.tensor([[*text[:8], *ids, *text[8:]]]), **media}

    @torch.no_grad()
    def think(self, inputs: Inputs, tokens: int = 24) -> Thought:
        """Greedily, until the end or `tokens`."""
        ids = inputs["input_ids"]
        answer = self.model.thinker.generate(
            **inputs,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            output_hidden_states=True,
            return_dict_in_generate=True,
        )
        steps = answer.hidden_states
        config = self.config
        placeholders = torch.tensor([config.audio_token_index, config.image_token_index, config.video_token_index])
        heard = torch.isin(ids[0], placeholders)
        embeddings = torch.cat([step[0][0] for step in steps])
        embeddings[: len(heard)][heard] = 0
        rows = torch.cat([step[-1][0] for step in steps]) + embeddings
        return Thought(inputs, answer.sequences[0], rows, self._positions(ids, inputs))

    def _positions(self, ids: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        audio = inputs.get("feature_attention_mask")
        lengths = None if audio is None else audio.sum(1)
        mask = torch.ones_like(ids)
        grid = inputs.get("image_grid_thw")
        positions, _ = self.model.thinker.get_rope_index(ids, grid, None, mask, False, lengths, None)
        return positions[:, 0].long()

    @torch.no_grad()
    def talk(self, thought: Thought, voice: str, penalty: float = 1.0, limit: int = 64) -> list[int]:
        """The likeliest codes, without the one that ends the speech."""
        talker, prompt = self.model.talker, thought.prompt
        opening = self.model.speaker_map[voice]["bos_token"]
        embed = self.model.thinker.get_input_embeddings()
        spoken, end, padding = embed(torch.tensor([opening, talker.text_eos_token, talker.text_pad_token]))
        reply = torch.cat((thought.rows[prompt + 1 :], end[None], padding[None]))[None]
        rows = torch.cat((thought.rows[:prompt], spoken[None], thought.rows[prompt : prompt + 1]))[None]
        ids = torch.cat((thought.ids[:prompt], torch.tensor([opening]), thought.ids[prompt : prompt + 1]))[None]
        mask = torch.ones_like(ids)
        media: dict[str, Any] = {"image_grid_thw": thought.inputs.get("image_grid_thw")}
        if "feature_attention_mask" in thought.inputs:
            media["audio_feature_lengths"] = thought.inputs["feature_attention_mask"].sum(1)
        talker.rope_deltas = None
        out = talker(
            inputs_embeds=rows,
            attention_mask=mask,
            input_text_ids=ids,
            thinker_reply_part=reply,
            use_cache=True,
            **media,
        )
        history = [talker.codec_mask_token] * prompt + [talker.codec_pad_token, talker.codec_bos_token]
        penalize = RepetitionPenaltyLogitsProcessor(penalty)
        codes: list[int] = []
        while len(codes) < limit:
            logits = penalize(torch.tensor([history]), out.logits[:, -1].clone())[0]
            logits[talker.codec_bos_token] = -torch.inf
            code = int(logits.argmax())
            if code in (talker.codec_pad_token, talker.codec_eos_token):
                break
            codes.append(code)
            history.append(code)
            mask = torch.cat((mask, mask[:, :1]), dim=1)
            out = talker(
                input_ids=torch.tensor([[code]]),
                attention_mask=mask,
                past_key_values=out.past_key_values,
                thinker_reply_part=out.thinker_reply_part,
                use_cache=True,
            )
        return codes
