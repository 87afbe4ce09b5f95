"""What serving a checkpoint would take, as far as that is known before its weights are read.

parameters, dtype, context    the check
weights                       parameters * dtype, shared out among the ranks
pool                          what is left, by the rules of warm-up; on CUDA without what the
                              largest step takes, which only a trial shows
"""

import torch

from model_server.attention.base import DEFAULT_BLOCK_SIZE
from model_server.config import CheckConfig, num_gpus
from model_server.engine import memory
from model_server.errors import ConfigRefused, OutOfMemory
from model_server.executor.device_weights import Partition
from model_server.model.checkpoint_check import CheckedCheckpoint
from model_server.model.preflight import bytes_of_rank, device_of, preflight
from processes.capacity import Capacity, Pool


def forecast(settings: CheckConfig) -> Capacity:
    """Check a checkpoint and this machine as `serve` does before it reads weights.

    Raises what `preflight` raises, OutOfMemory where weights or pool do not fit, and ConfigRefused
    for limits that the pool cannot hold.
    """
    for rank in range(settings.world_size):
        # One rank stands for all but in this.
        device_of(settings.device, rank, num_gpus())
    of_model, checked = preflight(settings)
    device, num_ranks = of_model.device, settings.world_size
    available = memory.available_bytes(device)
    needed = memory.weights_of_all(device, checked.bytes_of_rank, num_ranks)
    memory.require_weights_fit(device, needed, available)
    max_len = settings.max_total_tokens or checked.facts.max_position_embeddings or 0
    pool = _pool(settings, checked, device, max_len)
    if pool is not None:
        reason = pool.too_long(settings.max_input_tokens, settings.max_total_tokens)
        if reason is not None:
            raise ConfigRefused(reason)
        max_len = min(max_len, pool.num_blocks * pool.block_size)
    return Capacity(
        num_parameters=checked.num_parameters,
        dtype=str(checked.dtype).removeprefix("torch."),
        executor="dense" if checked.fallback_reason is None else "zoo",
        num_shards=num_ranks,
        max_total_len=max_len,
        weights_bytes=bytes_of_rank(settings, checked),
        pool=pool,
    )


def _pool(
    settings: CheckConfig, checked: CheckedCheckpoint, device: torch.device, max_len: int
) -> Pool | None:
    """None for a model without a recipe: the shapes of its keys show when it is loaded."""
    if checked.recipe is None:
        return None
    part = Partition(settings.rank, settings.world_size)
    bytes_per_block = sum(
        2 * DEFAULT_BLOCK_SIZE * checked.dtype.itemsize * each.head_dim
        * len(part.kv_heads(each.num_kv_heads))
        for each in (layer.attention for layer in checked.recipe.layers)
    )  # fmt: skip
    num_blocks = settings.kv_blocks
    if num_blocks is None:
        left = _bytes_left(settings, checked, device)
        # One of them is the scratch block.
        num_blocks = left // bytes_per_block - 1
        if device.type == "cpu":
            longest = -(-max_len // DEFAULT_BLOCK_SIZE)
            num_blocks = min(num_blocks, settings.max_batch_size * longest)
    if num_blocks < 1:
        raise OutOfMemory(f"no memory is left on {device} for a KV pool beside the weights")
    return Pool(num_blocks, DEFAULT_BLOCK_SIZE, bytes_per_block)


def _bytes_left(settings: CheckConfig, checked: CheckedCheckpoint, device: torch.device) -> int:
    """For a rank's pool, once the weights are loaded."""
    of_rank = checked.bytes_of_rank
    if device.type == "cuda":
        return memory.pool_bytes(
            device,
            peak_bytes=of_rank,
            memory_fraction=settings.cuda_memory_fraction,
            num_ranks=settings.world_size,
        )
    available = memory.available_bytes(device)
    if available is not None:
        available -= memory.weights_of_all(device, of_rank, settings.world_size)
    return memory.host_pool_bytes(available, settings.world_size)
