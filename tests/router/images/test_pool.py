"""Real processors in processes of their own, which hostile files cannot hurt."""

import asyncio
import io
import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image
from prometheus_client import CollectorRegistry
from transformers import AutoProcessor

from processes.instruments import Gauge
from processes.zygote.frames import Frame
from proto import contract
from router.images.memory import Held, ImageFile, ImageMemory
from router.images.pool import Blind, ImagePool, ImageRules, may_see, read_tensors
from router.request.errors import Overloaded, Unhealthy
from router.request.images import ImageRefused, PreparedImage, splice
from router.telemetry.metrics import Metrics
from tests import seeing_checkpoint

pytestmark = pytest.mark.slow


MEMORY = ImageMemory(1 << 30, Gauge("bytes", "of images"))


def file_of(width: int, height: int, seed: int = 0) -> ImageFile:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return png(Image.fromarray(values))


def blank(width: int, height: int) -> ImageFile:
    return png(Image.new("L", (width, height)))


def png(image: Image.Image) -> ImageFile:
    file = io.BytesIO()
    image.save(file, "PNG")
    return ImageFile(file.getvalue(), Held(MEMORY))


async def started(
    folder: Path,
    rules: ImageRules,
    memory: ImageMemory | None = None,
    max_span_len: int | None = None,
) -> ImagePool:
    pool = ImagePool(folder, rules)
    metrics = Metrics(CollectorRegistry(), max_input_len=10, max_total_len=20)
    await pool.start("float32", memory or MEMORY, metrics, max_span_len)
    return pool


async def zygote_and_workers(pool: ImagePool) -> tuple[int, list[int]]:
    """Their ids; the workers are idle."""
    pid = (await pool._idle_workers.zygote_client()).pid
    return pid, list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.asyncio(loop_scope="class")
class TestOnePool:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return seeing_checkpoint.save("llava", tmp_path_factory.mktemp("model"))

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    async def pool(self, folder: Path) -> AsyncIterator[ImagePool]:
        rules = ImageRules(max_pixels=1 << 27, wait_s=120.0, worker_bytes=220 << 20)
        pool = await started(folder, rules)
        yield pool
        await pool.close()

    async def test_the_same_file_is_read_once_and_shared(self, pool: ImagePool) -> None:
        num_made = pool._metrics.image_processor.count()
        one, two = await asyncio.gather(
            pool.prepare(file_of(60, 40)), pool.prepare(file_of(60, 40))
        )
        three = await pool.prepare(file_of(60, 40))
        assert one.tensors is two.tensors is three.tensors
        assert pool._metrics.image_processor.count() == num_made + 1
        assert len(one.digest) == 16

    async def test_of_base64_it_is_the_same(self, pool: ImagePool) -> None:
        file = file_of(61, 40)
        plain = await pool.prepare(file)
        text = await pool.prepare(replace(file, data=b64encode(file.data), is_base64=True))
        assert (text.span_ids, text.tensors) == (plain.span_ids, plain.tensors)

    async def test_other_bytes_are_another_image(self, pool: ImagePool) -> None:
        one = await pool.prepare(file_of(60, 40, seed=1))
        two = await pool.prepare(file_of(60, 40, seed=2))
        assert one.span_ids == two.span_ids
        assert one.digest != two.digest

    async def test_what_cannot_be_read_costs_its_own_request(self, pool: ImagePool) -> None:
        made = await asyncio.gather(
            pool.prepare(ImageFile(b"no image", Held(MEMORY))),
            pool.prepare(file_of(50, 50)),
            return_exceptions=True,
        )
        assert isinstance(made[0], ImageRefused)
        assert not isinstance(made[1], BaseException)

    async def test_spans_and_pixels_are_what_the_processor_makes_of_the_whole_prompt(
        self, pool: ImagePool, folder: Path
    ) -> None:
        images, whole = await spliced(pool, folder, file_of(60, 40), file_of(33, 70))
        pixels = [np.frombuffer(each.tensors["pixel_values"].data, np.float32) for each in images]
        assert np.array_equal(np.concatenate(pixels), whole["pixel_values"].reshape(-1))

    async def test_one_whose_worker_is_killed_fails_alone_and_is_not_to_blame(
        self, pool: ImagePool
    ) -> None:
        idle = pool._idle_workers._ready
        zygote, workers = await zygote_and_workers(pool)
        # So it cannot say that they have ended.
        os.kill(zygote, signal.SIGSTOP)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        reading = asyncio.create_task(pool.prepare(file_of(32, 22)))
        while pool._idle_workers._ready == idle:
            await asyncio.sleep(0.001)
        os.kill(zygote, signal.SIGCONT)
        with pytest.raises(Unhealthy, match="that read an image was killed"):
            await reading
        await asyncio.gather(*(worker.ended for worker in idle))
        assert (await pool.prepare(file_of(32, 22))).tensors

    async def test_others_read_once_all_processes_were_killed(self, pool: ImagePool) -> None:
        zygote = await pool._idle_workers.zygote_client()
        os.kill(zygote.pid, signal.SIGKILL)
        await zygote.over
        assert (await pool.prepare(file_of(20, 20, 100))).tensors
        assert await pool._idle_workers.zygote_client() is not zygote

    async def test_a_worker_that_somebody_stopped_goes_on(self, pool: ImagePool) -> None:
        _, workers = await zygote_and_workers(pool)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        assert (await pool.prepare(file_of(34, 22))).tensors

    async def test_one_that_needs_too_much_memory_is_refused(self, pool: ImagePool) -> None:
        with pytest.raises(ImageRefused, match="takes more than the 220 MiB"):
            await pool.prepare(blank(11_000, 11_000))
        assert (await pool.prepare(file_of(33, 22))).tensors


async def spliced(
    pool: ImagePool, folder: Path, *files: ImageFile
) -> tuple[Sequence[contract.Image], Any]:
    """Two images in a prompt, and what the checkpoint's processor makes of the whole of it."""
    prepared = [await pool.prepare(file) for file in files]
    processor = AutoProcessor.from_pretrained(folder)  # type: ignore[no-untyped-call]
    text = f"see {pool.marker} this {pool.marker} too"
    ids = processor.tokenizer(text)["input_ids"]
    marker_id = processor.tokenizer.convert_tokens_to_ids(pool.marker)
    token_ids, images = splice(ids, marker_id, prepared)
    opened = [Image.open(io.BytesIO(file.data)) for file in files]
    whole = processor(text=text, images=opened, return_tensors="np")
    assert list(token_ids) == whole["input_ids"][0].tolist()
    return images, whole


async def test_spans_of_many_rows_are_the_processors_up_to_what_a_step_holds(
    tmp_path: Path,
) -> None:
    folder = seeing_checkpoint.save("idefics3", tmp_path)
    assert may_see(folder)
    pool = await started(folder, ImageRules(max_pixels=10_000), max_span_len=50)
    try:
        await spliced(pool, folder, file_of(10, 90), file_of(33, 70))
        with pytest.raises(ImageRefused, match="has 82 tokens, of which a step computes all or"):
            await pool.prepare(file_of(60, 40))
    finally:
        await pool.close()


async def test_images_that_are_held_take_memory_and_others_are_told_to_wait(
    tmp_path: Path,
) -> None:
    folder = seeing_checkpoint.save("llava", tmp_path)
    num_bytes = 3 * 28 * 28 * 4
    memory = ImageMemory(2 * num_bytes, Gauge("bytes", "of images"))
    pool = await started(folder, ImageRules(max_pixels=10_000), memory)
    try:
        held = [await pool.prepare(file_of(20, 20, seed)) for seed in range(2)]
        assert memory.num_bytes == 2 * num_bytes
        with pytest.raises(Overloaded, match="--image-memory") as refused:
            await pool.prepare(file_of(20, 20, 2))
        assert refused.value.retry_after_s > 0
        # What is held costs nothing more.
        assert (await pool.prepare(file_of(20, 20, 1))).tensors is held[1].tensors
        held.pop()
        assert (await pool.prepare(file_of(20, 20, 2))).tensors
        assert memory.num_bytes <= 2 * num_bytes
        held.clear()
        # Those that waited for a worker find no room either.
        made = await asyncio.gather(
            *(pool.prepare(file_of(20, 20, 10 + seed)) for seed in range(12)),
            return_exceptions=True,
        )
        assert {type(one) for one in made} == {PreparedImage, Overloaded}
        assert memory.num_bytes <= (1 + pool._rules.num_jobs) * num_bytes
    finally:
        await pool.close()


async def test_one_that_takes_too_long_ends_its_worker(tmp_path: Path) -> None:
    folder = seeing_checkpoint.save("llava", tmp_path)
    # No machine decodes so many pixels in that.
    pool = await started(folder, ImageRules(max_pixels=1 << 27, cpu_s=0.001))
    try:
        with pytest.raises(ImageRefused, match=r"takes more than 0\.001 s to be read"):
            await pool.prepare(blank(4000, 4000))
    finally:
        await pool.close()


async def test_a_processor_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    folder = seeing_checkpoint.save("llava", tmp_path)
    (folder / "processor_config.json").write_text('{"processor_class": "LlavaProcessor"}')
    with pytest.raises(Blind, match="its processor cannot be used: "):
        await started(folder, ImageRules(max_pixels=10_000))


def test_a_worker_names_no_tensor_that_the_class_does_not_take() -> None:
    names = frozenset(("pixel_values",))
    answer = {"tensors": [["pixel_values", "int64", [1]], ["labels", "int64", [1]]]}
    with pytest.raises(ValueError, match="takes no labels"):
        read_tensors(Frame(answer, bytes(16)), names)
    answer["tensors"].pop()
    assert set(read_tensors(Frame(answer, bytes(8)), names)) == names
