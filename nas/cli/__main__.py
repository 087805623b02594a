"""`python -m nas.cli`."""

from nas.cli.application import main

main()
