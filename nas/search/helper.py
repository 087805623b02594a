"""Main module of a search's helper processes. `nas.search.study.workers` starts it and sends one line of
JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nas.search.study.interrupts import SIGNALS
from search_spaces.common.errors import NasError
from search_spaces.common.process import set_default_threads

INTERRUPT_SECONDS = 30.0  # between two interrupts; enqueueing a trial again takes less


def main() -> None:
    """Join the search that the first line of standard input names. End when standard input ends."""
    set_default_threads()
    arguments: dict[str, Any] = json.loads(sys.stdin.readline())
    end_with_input()
    import optuna

    from nas.search.joining import join
    from nas.search.study.workers import Share

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    checkpoints = arguments.pop("checkpoints", None)
    share = Share(**arguments.pop("share"))
    join(
        **arguments, share=share, checkpoints=Path(checkpoints) if checkpoints else None, trust=True
    )


def end_with_input() -> None:
    """Interrupt this process when its standard input ends.

    A shell starts background jobs of a script with interrupts ignored, so the default handler is
    restored first. It handles a termination as well.
    """
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=_interrupt_at_end, daemon=True).start()


def _interrupt_at_end() -> None:
    os.read(sys.stdin.fileno(), 1)
    while True:  # Python drops an interrupt that arrives while it finalizes an object
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(INTERRUPT_SECONDS)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except NasError as error:
        sys.exit(str(error))
