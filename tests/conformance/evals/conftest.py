"""Nothing is fetched and nothing is kept: all data are the tests' own."""

import os
import shutil
import tempfile

# Read when datasets and huggingface_hub are imported, so before any fixture.
_CACHE = tempfile.mkdtemp(prefix="tandem-datasets-")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = _CACHE


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)
