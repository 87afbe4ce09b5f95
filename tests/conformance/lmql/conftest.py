"""lmql keeps masks and tokenizers below the home folder by a model's name: here, for one run."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

# Read when lmql is imported, so before any fixture.
_HOME = tempfile.mkdtemp(prefix="tandem-lmql-")
os.environ["HOME"] = _HOME
os.environ["HF_HUB_OFFLINE"] = "1"

import lmql  # noqa: E402

from tests.conformance.serving import Served  # noqa: E402


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest_asyncio.fixture(autouse=True)
async def kept_tasks() -> AsyncIterator[None]:
    """lmql drops its tasks while they run, so that they end when garbage is collected, with a
    complaint of asyncio's: here they are kept, and ended with the test."""
    kept: list[asyncio.Task[Any]] = []

    def keep(loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        kept.append(asyncio.Task(coroutine, loop=loop, **named))
        return kept[-1]

    asyncio.get_running_loop().set_task_factory(keep)
    yield
    asyncio.get_running_loop().set_task_factory(None)
    left = [task for task in kept if not task.done() and task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@pytest_asyncio.fixture
async def model(served: Served) -> AsyncIterator[lmql.LLM]:
    """The bundled model as lmql sees it. A model object belongs to one event loop."""
    yield lmql.model(served.model, endpoint=served.url, tokenizer=served.model)
