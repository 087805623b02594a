"""Beyond networks: generated programs are run and measured, and the RLM reads them as text."""
