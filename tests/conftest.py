"""Two test processes share the machine's cores: each keeps to one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
