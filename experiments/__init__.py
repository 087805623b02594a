"""Reproducible studies: each module is one command that rebuilds its tables and figures."""
