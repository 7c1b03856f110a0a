"""Several processes, the ranks, that draw each picture of one diffusion replica together."""
