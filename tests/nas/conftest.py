from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the test's own, and no ready tables."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("NAS_CACHE", str(folder))
    monkeypatch.delenv("NAS_DATA", raising=False)
    return folder


@pytest.fixture(scope="session")
def nas_data() -> Path:
    """The folder of real tables; tests that need it are skipped where NAS_DATA does not name one."""
    folder = Path(os.environ.get("NAS_DATA", ""))
    if not (folder / "nasbench201.csv.gz").is_file():
        pytest.skip("NAS_DATA does not name a folder with nasbench201.csv.gz")
    return folder
