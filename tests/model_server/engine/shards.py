"""A shard without its wire, for tests: a loaded checkpoint, a sampler, a runner and its pool."""

from pathlib import Path

import torch

from model_server.checkpoint.check import ModelSettings
from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.executor.executor import PagedModel
from model_server.loading import load_model, new_sampler
from tests.model_server.engine.driver import Driver

NUM_BLOCKS = 64


def load(folder: Path, world: World, dtype: str = "float32", device: str = "cpu") -> PagedModel:
    """The model of a checkpoint."""
    settings = ModelSettings(folder, torch.device(device), dtype=dtype)
    return load_model(settings, world)


def runner_of(model: PagedModel, world: World, *, runs_ahead: bool | None = None) -> Runner:
    """A runner, with a sampler where there has to be one."""
    sampler = None
    if world.is_first:
        sampler = new_sampler(model, max_rows=8)
    return Runner(model, sampler, world, runs_ahead=runs_ahead)


def warmed_up(
    model: PagedModel, world: World | None = None, *, runs_ahead: bool | None = None
) -> Runner:
    """A runner whose pool is made."""
    runner = runner_of(model, world or World(), runs_ahead=runs_ahead)
    runner.warmup(max_step_tokens=32, max_batch_size=4, max_total_len=None, num_blocks=NUM_BLOCKS)
    return runner


def driver_of(
    model: PagedModel, world: World | None = None, seed: int = 0, num_drafts: int = 0
) -> Driver:
    """A driver of such a runner."""
    return Driver(warmed_up(model, world), NUM_BLOCKS, model.block_size, seed, num_drafts)
