"""What transformers' Qwen3-Omni talker says, in a loop of our own: its `generate` drops attention masks of ones.

All is greedy, in float32, and a request at a time. The thinker's rows come from outside.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

PENALTY = 1.05


class Thought(msgspec.Struct, eq=False):
    """What a thinker has made: ids [prompt + reply], embeddings and hidden states [prompt + reply, width], and M-RoPE
    positions [3, prompt] of its prompt, as vLLM gives them. The reply's last id, which is never computed, is missing.
    `grid` [pictures, 3] is of the pictures in it.
    """

    ids: torch.Tensor
    embeddings: torch.Tensor
    hidden: torch.Tensor
    positions: torch.Tensor
    grid: torch.Tensor | None = None


@torch.inference_mode()
def say(model: Any, thought: Thought, speaker: str, most: int) -> list[list[int]]:
    """At most so many frames of codes."""
    talker, config = model.talker, model.config.talker_config
    inputs, trailing, pad = _conditioning(model, thought, config.speaker_id[speaker])
    positions, frames, said, cache = _positions(model, thought, inputs.shape[1]), [], [], None
    while len(frames) < most:
        output = talker(
            inputs_embeds=inputs,
            position_ids=positions,
            attention_mask=torch.ones(1, int(positions.shape[-1]) if cache is None else cache.get_seq_length() + 1),
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=True,
            generation_step=len(frames) - 1,
        )
        cache = output.past_key_values
        code = _likeliest(output.logits[0, -1], said, config)
        if code == config.codec_eos_token_id:
            break
        said.append(code)
        first = talker.get_input_embeddings()(torch.tensor([[code]]))
        rest = residual(talker.code_predictor, output.hidden_states[0][-1][0, -1], first[0, 0], config.num_code_groups)
        frames.append([code, *rest])
        tables = talker.code_predictor.get_input_embeddings()
        heard = first[0, 0] + sum(table(torch.tensor(code)) for table, code in zip(tables, rest, strict=True))
        step = len(frames) - 1
        inputs = (heard + (trailing[step] if step < len(trailing) else pad))[None, None]
        positions = positions.max().expand(3, 1, 1) + 1
    return frames


@torch.inference_mode()
def residual(predictor: Any, hidden: torch.Tensor, first: torch.Tensor, groups: int) -> list[int]:
    """The likeliest other codes of a frame, of a hidden row and the embedding of its first code [hidden]."""
    inputs: dict[str, Any] = {"inputs_embeds": torch.stack((hidden, first))[None]}
    codes, cache = [], None
    for step in range(groups - 1):
        output = predictor(**inputs, past_key_values=cache, use_cache=True, generation_steps=step)
        code = output.logits[:, -1].argmax(-1)
        cache = output.past_key_values
        inputs = {"input_ids": code[:, None]}
        codes.append(int(code))
    return codes


def _conditioning(model: Any, thought: Thought, speaker: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The prompt [1, n, hidden], what is added to each frame after it [m, hidden], and for ever after [hidden]."""
    config, talker = model.config, model.talker
    kept = _asked(model, thought)
    thinker = config.thinker_config
    senses = torch.isin(
        thought.ids, torch.tensor([thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id])
    )
    user = model._get_talker_user_parts(
        0, len(thought.ids), senses[None], thought.hidden[None], thought.embeddings[None]
    )
    own = torch.tensor([[config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]])
    bos, eos, pad = talker.text_projection(model.thinker.get_input_embeddings()(own)).chunk(3, dim=1)
    turn = max(_turns(model, thought, config.assistant_token_id))
    assistant, _, trailing = model._get_talker_assistant_parts(
        turn, len(thought.ids), speaker, thought.embeddings[None], pad, bos, eos
    )
    return torch.cat((user[:, kept], assistant), dim=1), trailing[0], pad[0, 0]


def _turns(model: Any, thought: Thought, role: int) -> list[int]:
    ids = thought.ids[: thought.positions.shape[1]].tolist()
    starts = [index for index, token in enumerate(ids) if token == model.config.im_start_token_id]
    return [start for start in starts if ids[start + 1] == role]


def _asked(model: Any, thought: Thought) -> list[int]:
    """Positions in the user's turns."""
    ids = thought.ids[: thought.positions.shape[1]].tolist()
    starts = [index for index, token in enumerate(ids) if token == model.config.im_start_token_id]
    ends = [*starts[1:], len(ids)]
    mine = set(_turns(model, thought, model.config.user_token_id))
    return [index for start, end in zip(starts, ends, strict=True) if start in mine for index in range(start, end)]


def _positions(model: Any, thought: Thought, length: int) -> torch.Tensor:
    """M-RoPE positions [3, 1, length] of the talker's prompt, which transformers counts anew."""
    if thought.grid is None:
        return torch.arange(length).expand(3, 1, -1)
    kept = thought.ids[_asked(model, thought)]
    ids = torch.cat((kept, torch.full((length - len(kept),), model.config.tts_pad_token_id)))[None]
    positions, _ = model.talker.get_rope_index(ids, image_grid_thw=thought.grid, attention_mask=torch.ones_like(ids))
    return positions.long()


def _likeliest(logits: torch.Tensor, said: list[int], config: Any) -> int:
    seen = torch.tensor(sorted(set(said)), dtype=torch.long)
    logits[seen] = torch.where(logits[seen] < 0, logits[seen] * PENALTY, logits[seen] / PENALTY)
    size = config.text_config.vocab_size
    controls = [index for index in range(size - 1024, size) if index != config.codec_eos_token_id]
    logits[controls] = -torch.inf
    return int(logits.argmax())
