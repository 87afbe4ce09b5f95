"""Two tensor-parallel ranks, each in a process of its own, that talk over gloo."""

import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from model_server.engine.distributed import World
from processes.addresses import free_port
from tests.model_server import forked

WORLD_SIZE = 2
TIMEOUT_S = 120.0

Work = Callable[[World], Any]


def _rank(rank: int, port: int, work: Work, answer: Connection) -> None:
    """The life of one rank's process."""
    try:
        torch.set_num_threads(1)
        world = World.connect(
            rank=rank,
            world_size=WORLD_SIZE,
            master_addr="127.0.0.1",
            master_port=port,
            device=torch.device("cpu"),
            load_timeout_s=60.0,
            step_timeout_s=20.0,
        )
        answer.send(work(world))
        # As a shard does: the process group's own clean-up waits for its peers.
        os._exit(0)
    except BaseException:
        answer.send(traceback.format_exc())
        raise


def on_two_ranks(work: Work) -> list[Any]:
    """Run `work` on both ranks, each in a process of its own; answers what each returned."""
    context = forked.context()
    port = free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(WORLD_SIZE)]
    processes = [
        context.Process(target=_rank, args=(rank, port, work, sender))
        for rank, (_, sender) in enumerate(pipes)
    ]
    try:
        for process in processes:
            process.start()
        answers = []
        for receiver, _ in pipes:
            assert receiver.poll(TIMEOUT_S), "a rank did not answer"
            answers.append(receiver.recv())
        for process in processes:
            process.join(TIMEOUT_S)
        return answers
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
