"""Constraints under tensor parallelism: rank 0 masks and forces, the other learns every token."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from constraints.spec import Kind
from model_server.engine.distributed import World
from proto.contract import FinishReason, OutputConstraint, SamplingParams
from tests.model_server.engine.ranks import on_two_ranks
from tests.model_server.engine.shards import load
from tests.model_server.engine.test_tensor_parallel import ShadowDriver
from tests.model_server.masking.faulty import FAULTY, FaultyLanguages
from tests.model_server.masking.shard import NUM_BLOCKS, Shard, of, save

PROMPT = tuple(range(300, 320))
HOT = SamplingParams(do_sample=True, temperature=1.5)
FIXED = r'\{"a fixed beginning": [0-9]{3}, "and a fixed end": (true|false)\}'
COLOURS = ["crimson red", "crimson blue", "white"]
CONSTRAINTS = (
    of(Kind.REGEX, FIXED),
    of(Kind.CHOICE, json.dumps(COLOURS)),
    FAULTY,
    None,
    # Cannot be compiled: its row fails on both ranks.
    of(Kind.REGEX, "a(b"),
)


class _Serve:
    """Constrained requests beside others, until all have ended; what this rank holds of them."""

    def __init__(self, folder: Path, constraints: Sequence[OutputConstraint | None]) -> None:
        self.folder = folder
        self.constraints = constraints

    def __call__(self, world: World) -> Any:
        if world.is_first:
            shard = Shard.load(self.folder, world)
        else:
            # Nothing of a constraint is read here.
            shard = Shard(load(self.folder, world), None)  # type: ignore[arg-type]
        guides = None
        if world.is_first:
            faulty = FaultyLanguages(shard.languages, lambda: time.sleep(0.1), 1)
            guides = Shard(shard.model, faulty).guides(hold_s=0.01)
        runner = shard.runner(guides, world)
        driver = ShadowDriver(runner, NUM_BLOCKS, shard.model.block_size)
        for request_id, constraint in enumerate(self.constraints):
            driver.add(
                request_id,
                PROMPT,
                40,
                sampling=replace(HOT, seed=request_id),
                constraint=constraint,
            )
        num_steps = 0
        while not all(request.finish_reason for request in driver.requests.values()):
            driver.step(step_tokens=48)
            num_steps += 1
        requests = driver.requests.values()
        texts = [shard.text(driver.outputs[i]) for i in (0, 1, 2)] if world.is_first else []
        return [r.output for r in requests], [r.finish_reason for r in requests], texts, num_steps


@pytest.mark.slow
def test_both_ranks_hold_the_same_tokens_and_end_together(tmp_path: Path) -> None:
    """Also where a mask is late: both go on without it, and compute its token again."""
    first, second = on_two_ranks(_Serve(save(tmp_path), CONSTRAINTS))
    assert isinstance(first, tuple), first
    assert isinstance(second, tuple), second
    outputs, reasons, texts, num_steps = first
    assert re.fullmatch(FIXED, texts[0])
    assert texts[1] in COLOURS
    assert re.fullmatch("[a-z]+ ?", texts[2])
    assert reasons[:2] == [FinishReason.CONSTRAINT_COMPLETE] * 2
    assert FinishReason.ERROR not in reasons[2:-1]
    assert reasons[-1] is FinishReason.ERROR
    assert len(outputs[0]) > 10
    # Forced tokens took no steps of their own; each mask that was waited for in vain took one.
    assert second[3] == num_steps > 40
    for mine, shadow in zip(outputs, second[0], strict=True):
        # The other rank does not get the last tokens of ended sequences; it has a 0 in their place.
        assert mine[: len(shadow) - 1] == shadow[:-1]
