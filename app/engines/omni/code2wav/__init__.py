"""Vocoder stages: codec frames of a talker to sound, behind the engine contract; one module a family."""
