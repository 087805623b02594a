"""The command line `nas`: a file for each command."""

from nas.cli.application import app, main

__all__ = ["app", "main"]
