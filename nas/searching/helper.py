"""The main module of a search's further processes: `nas.searching.jobs` starts it with a line of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nas.evaluation.threads import set_default_threads
from search_spaces.common.errors import InputError

INTERRUPT_SECONDS = 30.0  # between two interrupts; giving a trial back takes less


def main() -> None:
    """Join the search that the first line of standard input names; give the trial back when the input ends."""
    set_default_threads()
    arguments: dict[str, Any] = json.loads(sys.stdin.readline())
    end_with_input()
    import optuna

    from nas.searching.joining import join

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    checkpoints = arguments.pop("checkpoints", None)
    join(**arguments, checkpoints=Path(checkpoints) if checkpoints else None, trust=True)


def end_with_input() -> None:
    """Interrupt this process once its standard input ends, also where it was started with interrupts ignored.

    A shell ignores them in what a script starts in the background.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_interrupt_at_end, daemon=True).start()


def _interrupt_at_end() -> None:
    os.read(sys.stdin.fileno(), 1)
    while True:  # Python drops an interrupt that comes while it finalizes an object
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(INTERRUPT_SECONDS)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except InputError as error:
        sys.exit(str(error))
