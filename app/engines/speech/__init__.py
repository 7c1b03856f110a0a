"""Speech stages: text-to-speech models behind the engine contract. Only these modules import them."""
