"""Measurements of speed: texts, export, decoding, search, and an overview."""
