"""Reproducible experiments: each module is one command that produces its tables and figures."""
