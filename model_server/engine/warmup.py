"""Warm-up: computes the largest steps, finds how many blocks fit beside them, and makes the pool.

Steps of warm-up write their keys and values to one block of a pool made for the purpose, again and
again: shapes, memory and time are those of real steps, the logits mean nothing.

One row of logits per sequence is tried. A step that scores prompts has one per token, which takes
num_tokens * vocab_size * bytes of the dtype more (4 096 tokens of 128 000 in bfloat16: 1 GB), and
is not part of the peak: on CUDA it must fit into the share that `memory_fraction` leaves alone.
Scoring adds little, since it goes by slices of rows.

Of a model that sees its encoder is tried on the largest image, too: it computes beside steps, and
what it saw is kept.

On the host no step is measured: its memory is given out page by page, and the pool takes a quarter
of it. There small steps show that the model computes, where the largest would take a minute with a
billion parameters, at each start; where the pool's size is given, as to a shard that is started
anew, there are none.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from model_server.engine import memory
from model_server.engine.distributed import World
from model_server.errors import OutOfMemory
from model_server.executor.executor import ModelSight, PagedModel
from model_server.images import MAX_GALLERY_BYTES
from model_server.sampling.sampler import Sampler, rehearse
from model_server.step import SequenceStep, StateStep, StepInputs
from proto.contract import PoolLimits

_log = logging.getLogger(__name__)

_HOST_STEP_TOKENS = 64
_HOST_BATCH_SIZE = 16
# Of states: all sequences of a step that is tried read one and write another.
_NUM_TRIED_STATES = 2


@dataclass(frozen=True, slots=True)
class Largest:
    """The most that a step may hold, and the longest sequence; None: as long as the model has."""

    step_tokens: int
    batch_size: int
    total_len: int | None


def warm_up(
    model: PagedModel,
    sampler: Sampler | None,
    world: World,
    largest: Largest,
    *,
    num_blocks: int | None,
    num_states: int | None = None,
    memory_fraction: float,
    num_adapters: int = 0,
) -> tuple[PoolLimits, "StepRoom"]:
    """Run the largest steps once, then allocate the pool: of the requested size, or what fits.

    num_adapters: that are to fit beside the pool

    Raises OutOfMemory when a step or the pool does not fit.
    """
    total_len = min(model.max_position_embeddings, largest.total_len or 1 << 62)
    if sampler is not None:
        sampler.reserve(largest.batch_size, total_len)
        if model.device.type == "cuda":
            rehearse(sampler, model.vocab_size, model.device, largest.batch_size)
    peak = Peak(total_bytes=0, bytes_per_token=0)
    if model.device.type == "cuda" or num_blocks is None:
        peak = try_largest_steps(model, largest, total_len)
    image_bytes = 0
    if model.device.type == "cuda" and model.sight is not None:
        image_bytes = bytes_of_images(model.device, model.sight, total_len)
    if not model.state_bytes:
        num_states = 0
    room_bytes = 0
    if num_blocks is None or num_states is None:
        room_bytes = memory.pool_bytes(
            model.device,
            peak_bytes=peak.total_bytes,
            memory_fraction=memory_fraction,
            num_ranks=world.world_size,
            reserved_bytes=num_adapters * model.adapter_bytes + image_bytes,
        )
    if num_states is None:
        num_states = memory.states_that_fit(
            model.device,
            model.state_bytes,
            room_bytes,
            max_batch_size=largest.batch_size,
            keeps_states=model.keeps_states,
        )
    num_states = world.smallest(num_states)
    if num_blocks is None:
        room_bytes -= num_states * model.state_bytes
        num_blocks = blocks_that_fit(model, room_bytes, largest.batch_size, total_len)
    num_blocks = world.smallest(num_blocks)
    memory.require_room(
        model.device,
        (num_blocks + 1) * model.bytes_per_block
        + num_states * model.state_bytes
        + num_adapters * model.adapter_bytes
        + image_bytes,
    )
    model.allocate(num_blocks, num_states)
    total_len = min(total_len, num_blocks * model.block_size)
    model.prepare(largest.batch_size, total_len)
    _log.debug(
        "pool of %d blocks of %d tokens, %.1f MiB",
        num_blocks,
        model.block_size,
        num_blocks * model.bytes_per_block / 2**20,
    )
    if num_states:
        _log.debug(
            "states: %.1f MB a sequence, %d slots, %.1f MiB",
            model.state_bytes / 1e6,
            num_states,
            num_states * model.state_bytes / 2**20,
        )
    room = StepRoom(world, model.device, peak.bytes_per_token)
    return PoolLimits(num_blocks, model.block_size, total_len, num_states), room


@dataclass(frozen=True, slots=True)
class StepRoom:
    """Whether every rank has the memory for a step, asked before one of them enters a collective.

    A rank that runs out of memory in the middle of a forward leaves the others in a collective that
    it will never enter. So ranks agree first, on the host, before each step of more tokens than a
    decode has.

    bytes_per_token: what a prompt step takes of the device; 0: not known, or it is the host
    """

    world: World
    device: torch.device
    bytes_per_token: int

    def require(self, num_tokens: int) -> None:
        """Raise OutOfMemory on all ranks, or on none."""
        if self.world.world_size == 1 or not self.bytes_per_token:
            return
        has_room = memory.has_room(self.device, num_tokens * self.bytes_per_token)
        if not self.world.smallest(int(has_room)):
            raise OutOfMemory(f"a step of {num_tokens} tokens does not fit on every rank")


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that the device's allocator held, weights included; of a prompt step, by tokens."""

    total_bytes: int
    bytes_per_token: int


def try_largest_steps(model: PagedModel, largest: Largest, total_len: int) -> Peak:
    """Compute the largest prompt step and decode steps; returns the peak of device memory.

    On the host small ones, whose peak is 0. On CUDA decodes of the longest sequences too, the last
    chunk of such a prompt, and what `prepare` keeps: their memory depends on the context. Replaces
    the model's pool by one of a single block. Raises OutOfMemory.
    """
    is_cuda = model.device.type == "cuda"
    step_tokens = largest.step_tokens if is_cuda else min(largest.step_tokens, _HOST_STEP_TOKENS)
    longest = min(step_tokens, total_len)
    whole, rest = divmod(step_tokens, longest)
    prompt_lens = [longest] * whole + [rest] * (rest > 0)
    model.allocate(1, _NUM_TRIED_STATES)

    def run() -> None:
        if is_cuda:
            _run(model, [longest], total_len)
            _run(model, [1] * largest.batch_size, total_len)
            model.prepare(largest.batch_size, total_len)
        else:
            _run(model, [1] * min(largest.batch_size, _HOST_BATCH_SIZE))
        _run(model, [1])

    try:
        before = memory.peak_of(model.device, lambda: None)
        of_prompts = memory.peak_of(model.device, lambda: _run(model, prompt_lens))
        total = max(of_prompts, memory.peak_of(model.device, run))
        return Peak(total, (of_prompts - before) // step_tokens)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"a step of {largest.step_tokens} tokens, or of {largest.batch_size} sequences of"
            f" {total_len} tokens, does not fit on {model.device}: lower"
            " --max-batch-prefill-tokens, --max-batch-size or --max-total-tokens"
        ) from error


def bytes_of_images(device: torch.device, sight: ModelSight, max_len: int) -> int:
    """That looking at the largest image takes beside a step, and that what was seen takes.

    Raises OutOfMemory.
    """
    look = sight.look_at_largest(max_len)
    try:
        before = memory.peak_of(device, lambda: None)
        return memory.peak_of(device, look) - before + MAX_GALLERY_BYTES
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"the largest image of which a prompt of {max_len} tokens has room does not fit on"
            f" {device}: lower --max-total-tokens"
        ) from error


def blocks_that_fit(
    model: PagedModel, room_bytes: int, max_batch_size: int, max_total_len: int
) -> int:
    """The number of blocks that fit on this rank. Raises OutOfMemory when none does.

    On the host no more than the largest batch of the longest sequences could ever fill.
    """
    # One of them is the scratch block.
    num_blocks = room_bytes // model.bytes_per_block - 1
    if num_blocks < 1:
        raise OutOfMemory(
            f"{max(0, room_bytes)} bytes are left for the KV pool on {model.device},"
            f" and a block takes {model.bytes_per_block}"
        )
    if model.device.type == "cuda":
        return num_blocks
    return min(num_blocks, max_batch_size * -(-max_total_len // model.block_size))


def _run(model: PagedModel, query_lens: Sequence[int], context_len: int = 0) -> None:
    """A step of such chunks, the last ones of contexts of at least so many tokens."""
    block_size = model.block_size
    steps = []
    for query_len in query_lens:
        total_len = max(query_len, context_len)
        block_ids = (0,) * -(-total_len // block_size)
        state = StateStep(0, 1) if model.state_bytes else None
        steps.append(SequenceStep((0,) * query_len, total_len - query_len, block_ids, state=state))
    inputs = StepInputs.build(
        steps,
        block_size=block_size,
        scratch_block_id=model.scratch_block_id,
        device=model.device,
        min_tokens=model.min_step_tokens,
    )
    model.forward(inputs)
