"""Claims about training in several processes: it is the same training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

SCRIPT = str(Path(__file__).with_name("train_rlm.py"))


def _run(*command: str) -> dict:
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_two_processes_have_the_losses_of_one() -> None:
    # On processors Accelerate launches by MPI; torchrun sets the same variables that its launcher sets for GPUs.
    alone, together = _run(SCRIPT), _run("-m", "torch.distributed.run", "--nproc_per_node", "2", SCRIPT)
    assert (alone["processes"], together["processes"]) == (1, 2)
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=1e-4)
    assert alone["losses"][-1] < alone["losses"][0]
