"""Processes that begin with torch and transformers imported, which takes a fresh one seconds."""

import multiprocessing
from functools import cache
from multiprocessing.context import ForkServerContext


@cache
def context() -> ForkServerContext:
    """Forks from a server that has imported the shard and computed nothing, so has no threads."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.model_server.engine.driver", "model_server.__main__"])
    return found
