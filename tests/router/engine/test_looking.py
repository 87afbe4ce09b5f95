"""Shards look at an image before its request enters a step, and others go on meanwhile."""

from collections import deque
from dataclasses import replace

import grpc
import pytest

from proto.contract import Image, ImageTensor
from router.request.request import GenerateRequest
from tests.fakes import FakeShard
from tests.router.rig import asking, end_of, events_of, expected_text, methods, routing, settled

pytestmark = pytest.mark.asyncio
PIXELS = {"pixel_values": ImageTensor("float32", (1,), bytes(4))}


def about(*digests: bytes) -> GenerateRequest:
    """A request with these images, of two tokens each."""
    images = tuple(Image(digest * 16, 3 * index, 2, PIXELS) for index, digest in enumerate(digests))
    return replace(asking(), images=images)


async def test_images_are_looked_at_before_the_first_step_and_once() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        for request in (about(b"a", b"b"), about(b"b")):
            end_of(await events_of(rig.batcher.submit(request)))
        assert methods(shard).index("LookAhead") < methods(shard).index("Prefill")
        prompt_ids = asking().prompt_ids
        assert shard.looked_at == [(b"a" * 16, prompt_ids[:2]), (b"b" * 16, prompt_ids[3:5])]
        assert rig.metrics.image_encoder.count() == 2


async def test_requests_with_the_same_image_wait_for_it_together() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        for stream in rig.batcher.submit_all([about(b"a"), about(b"a")]):
            end_of(await events_of(stream))
        assert len(shard.looked_at) == 1


async def test_nothing_is_looked_at_without_images() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        end_of(await events_of(rig.batcher.submit(asking())))
        assert "LookAhead" not in methods(shard)


async def test_others_go_on_while_one_waits_for_its_image() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("LookAhead")
    async with routing(shard) as rig:
        waiting = rig.batcher.submit(about(b"a"))
        other = end_of(await events_of(rig.batcher.submit(asking())))
        assert other.text == expected_text("Once upon", 6)
        assert waiting.end is None
        rig.batcher.cancel(waiting)
        await settled(rig)


async def test_an_image_that_was_not_looked_at_is_left_to_its_step() -> None:
    shard = FakeShard()
    internal = grpc.StatusCode.INTERNAL
    shard.faults.fails = deque([("LookAhead", internal, "no memory to look")])
    async with routing(shard) as rig:
        ended = end_of(await events_of(rig.batcher.submit(about(b"a"))))
        assert ended.text == expected_text("Once upon", 6)
        assert shard.looked_at == []
