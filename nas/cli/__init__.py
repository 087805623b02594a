"""The command line `nas`: a file for each command."""

from search_spaces.common.process import set_default_threads

set_default_threads()  # before anything imports numpy or torch

from nas.cli.application import app, main  # noqa: E402

__all__ = ["app", "main"]
