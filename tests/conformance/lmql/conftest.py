"""lmql keeps masks and tokenizers below the home folder by a model's name: here, for one run."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator

import pytest_asyncio

# Read when lmql is imported, so before any fixture.
_HOME = tempfile.mkdtemp(prefix="tandem-lmql-")
os.environ["HOME"] = _HOME
os.environ["HF_HUB_OFFLINE"] = "1"

import lmql  # noqa: E402

from tests.conformance.serving import Served  # noqa: E402


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest_asyncio.fixture
async def model(served: Served) -> AsyncIterator[lmql.LLM]:
    """The bundled model as lmql sees it. A model object belongs to one event loop."""
    yield lmql.model(served.model, endpoint=served.url, tokenizer=served.model)
