"""The checks of `serve` without a server: those of the first shard and those of the router."""

import asyncio
from collections.abc import Mapping

from processes.child import Child, ChildFailed
from processes.deployment import Deployment
from processes.fetching import fetch_tokenizer
from processes.logs import Console


async def dry_run(
    deployment: Deployment, max_batch_size: int, environ: Mapping[str, str], console: Console
) -> int:
    """Says whether the model could be served, and what it would take. Returns the exit code.

    Ranks differ in the part of the weights that they hold alone, so one of them stands for all.
    """
    try:
        folder = await fetch_tokenizer(deployment, environ, console)
    except ChildFailed as error:
        console.say(f"error: {error}", "ERROR")
        console.flush()
        return 1
    console.say(f"checking {deployment.model_id} for {deployment.num_shard} shard(s)")
    shard_argv = [*deployment.shard_argv(folder, "check"), f"--max-batch-size={max_batch_size}"]
    router_argv = deployment.router_argv(folder, ["check"])
    children = await asyncio.gather(
        Child.start("shard 0", shard_argv, deployment.shard_environ(0, environ), console),
        Child.start("router", router_argv, deployment.router_environ(environ), console),
    )
    try:
        codes = await asyncio.gather(*(child.wait() for child in children))
    finally:
        for child in children:
            child.kill_group()
    for child in children:
        if child.returncode:
            console.say(f"error: {child.death_notice()}", "ERROR")
    if not any(codes):
        console.say(f"{deployment.model_id} can be served")
    console.flush()
    return 1 if any(codes) else 0
