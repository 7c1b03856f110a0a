"""Talkers: what a thinker makes becomes frames of codec ids, on vLLM; one module a family."""
