"""Speech stages: text-to-speech models behind the engine contract, one module a family."""
