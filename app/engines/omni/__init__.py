"""Omni models, whose stages hand tensors to each other: thinker, talker, code2wav; one module a family and stage."""
