"""Programs beyond networks: they are written by a generator, run and timed here, and read by the RLM as text."""
