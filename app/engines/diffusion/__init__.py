"""Diffusion stages: stock diffusers pipelines behind the engine contract. Only these modules import diffusers."""
