"""Measured speed: export, decoding, search, and an overview."""
