"""Owner of the processes that read images.

    file -> digest -> known, or being made for another?                    shared
                   -> room? -> a worker, killed if it takes too long       kept

What is kept is for those who send the same image again, as chats do with each turn.
"""

import asyncio
import logging
import os
import signal
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from math import prod
from pathlib import Path

from processes.model_folders import has_processor
from processes.zygote.client import Exit, IdleWorkers, Program, WorkerEnded, ZygoteFailed
from processes.zygote.frames import Frame, frame
from proto.contract import IMAGE_DTYPES, ImageTensor
from router.images.memory import Held, ImageFile, ImageMemory
from router.request.errors import Overloaded, Unhealthy
from router.request.images import ImageRefused, PreparedImage
from router.telemetry.metrics import Metrics

_logger = logging.getLogger("images")

_PROGRAM = "router.images.worker"
_RETRY_S = 1.0
# Until workers can be had, at the start.
_START_S = 120.0
_DIGEST_BYTES = 16
_ENVIRONMENT = {
    # Nothing of a checkpoint is looked for elsewhere.
    "HF_HUB_OFFLINE": "1",
    # Threads do not survive a fork.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def _num_jobs() -> int:
    return max(1, min(4, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True, slots=True)
class ImageRules:
    """The limits of a pool.

    max_pixels:   of one image
    cpu_s:        CPU seconds that reading one may take
    wait_s:       seconds that it may take with waiting for a worker
    worker_bytes: the growth of one worker
    num_jobs:     images that are read at the same time
    """

    max_pixels: int
    cpu_s: float = 20.0
    wait_s: float = 30.0
    worker_bytes: int = 4 << 30
    num_jobs: int = field(default_factory=_num_jobs)


class Blind(Exception):
    """Why images are not served."""


def may_see(folder: Path) -> bool:
    """Whether a checkpoint looks like one of a model that sees, before shards say so."""
    return has_processor(folder) and find_spec("PIL") is not None


class _Tensors(dict[str, ImageTensor]):
    """Of one image, with its tokens. It can be watched, to learn when nobody needs it."""

    __slots__ = ("__weakref__", "held", "span_ids")
    held: Held
    span_ids: tuple[int, ...]


class ImagePool:
    """Makes of images what stands for them in prompts. Create it inside the loop that uses it.

    `marker` is what stands for one in a prompt's text, once it is ready.
    """

    def __init__(self, folder: Path, rules: ImageRules) -> None:
        """`folder`: the checkpoint's, with its processor, of which no code is run."""
        self._rules = rules
        arguments = (
            *("--folder", str(folder)),
            *("--max-pixels", str(rules.max_pixels)),
            *("--cpu-s", str(rules.cpu_s)),
            *("--memory-bytes", str(rules.worker_bytes)),
        )
        program = Program(_PROGRAM, arguments, "image processes", _ENVIRONMENT)
        self._idle_workers = IdleWorkers(program, max_low=0)
        self._slots = asyncio.Semaphore(rules.num_jobs)
        self._memory: ImageMemory
        self._metrics: Metrics
        self._alive: weakref.WeakValueDictionary[bytes, _Tensors] = weakref.WeakValueDictionary()
        self._making: dict[bytes, asyncio.Task[_Tensors]] = {}
        self.marker = ""
        self._tensor_names: frozenset[str] = frozenset()
        # What another router's processor makes of a file may be something else.
        self._digest_key = os.urandom(blake2b.MAX_KEY_SIZE)
        self._dtype = "float32"
        self._max_span_len: int | None = None

    async def wait_spawned(self) -> None:
        """Return once this process has been forked for the workers, or that has failed."""
        await self._idle_workers.wait_spawned()

    async def start(
        self, dtype: str, memory: ImageMemory, metrics: Metrics, max_span_len: int | None = None
    ) -> None:
        """Waits until images can be read. Raises Blind if they never can.

        `dtype` is that of the model; tensors travel in it. `max_span_len`: tokens that an image may
        have, where a step must hold all of them.
        """
        self._memory = memory
        self._metrics = metrics
        try:
            async with asyncio.timeout(_START_S):
                about = await (await self._idle_workers.zygote_client()).ready
        except TimeoutError:
            raise Blind(f"its processor was not ready within {_START_S:g} s") from None
        except ZygoteFailed as error:
            raise Blind(str(error)) from error
        self.marker = about["marker"]
        # Told before any file is read: a worker that a file took over cannot name others.
        self._tensor_names = frozenset(about["tensor_names"])
        self._dtype = "bfloat16" if dtype == "bfloat16" else "float32"
        self._max_span_len = max_span_len

    async def close(self) -> None:
        """Ends all processes; what they do fails."""
        await self._idle_workers.close()

    async def prepare(self, file: ImageFile) -> PreparedImage:
        """What stands for an image. Raises ImageRefused, Overloaded where there is no room or no
        time, and Unhealthy where its worker dies.
        """
        digest = await asyncio.to_thread(self._digest, file.data)
        tensors = self._alive.get(digest)
        if tensors is None:
            making = self._making.get(digest)
            if making is None:
                making = asyncio.create_task(self._make(file))
                self._making[digest] = making
                making.add_done_callback(lambda task: self._made(digest, task))
            # For another who waits, too.
            tensors = await asyncio.shield(making)
        self._memory.keep(digest, tensors)
        return PreparedImage(digest, tensors.span_ids, tensors)

    def _digest(self, data: bytes) -> bytes:
        return blake2b(data, digest_size=_DIGEST_BYTES, key=self._digest_key).digest()

    def _made(self, digest: bytes, task: asyncio.Task[_Tensors]) -> None:
        del self._making[digest]
        if not task.cancelled() and task.exception() is None:
            self._alive[digest] = task.result()

    async def _make(self, file: ImageFile) -> _Tensors:
        try:
            async with asyncio.timeout(self._rules.wait_s), self._slots:
                self._memory.make_room()
                reply = await self._ask(file)
        except TimeoutError:
            reason = f"an image was not read within {self._rules.wait_s:g} s"
            raise Overloaded(reason, _RETRY_S) from None
        except WorkerEnded as error:
            raise self._explain(error.how) from None
        except ZygoteFailed as error:
            raise Unhealthy(f"images are not read any more: {error}") from error
        if "refused" in reply.fields:
            raise ImageRefused(reply.fields["refused"])
        return self._read(reply)

    async def _ask(self, file: ImageFile) -> Frame:
        worker = await self._idle_workers.take(low=False)
        # A third of the weight of a step's threads; less, and a CPU that decodes without a pause
        # would never read an image.
        worker.hurry()
        begun_s = asyncio.get_running_loop().time()
        fields = {"dtype": self._dtype, "is_base64": file.is_base64}
        reply: Frame | None = None
        try:
            reply = await worker.ask(frame(fields, len(file.data)), file.data)
            assert reply is not None, "no time limits it"
            return reply
        finally:
            if reply is None:
                worker.kill()
            else:
                took_s = asyncio.get_running_loop().time() - begun_s
                self._metrics.image_processor.observe(took_s)
                if reply.fields["leaves"]:
                    worker.close_channel()
                else:
                    self._idle_workers.put_back(worker)

    def _explain(self, how: Exit) -> Exception:
        if how.status in (None, -signal.SIGKILL):
            # Not by us, and its memory has a limit of its own: the machine's may be short.
            return Unhealthy("the process that read an image was killed")
        if how.status == -signal.SIGPROF:
            return ImageRefused(f"takes more than {self._rules.cpu_s:g} s to be read")
        # What cannot allocate fails or aborts.
        _logger.warning("a worker that read an image ended with status %s", how.status)
        mib = self._rules.worker_bytes >> 20
        return ImageRefused(f"takes more than the {mib} MiB in which it may be read")

    def _read(self, reply: Frame) -> _Tensors:
        """What a worker made, which is not trusted. Raises ImageRefused."""
        try:
            tensors = _Tensors(read_tensors(reply, self._tensor_names))
            tensors.span_ids = span_ids = tuple(map(int, reply.fields["span_ids"]))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ImageRefused(f"was read into what is no image: {error!r}") from error
        most = self._max_span_len
        if most is not None and len(span_ids) > most:
            rule = f"has {len(span_ids)} tokens, of which a step computes all or none; it may have"
            raise ImageRefused(f"{rule} {most} (--max-batch-prefill-tokens less --max-batch-size)")
        num_bytes = sum(len(tensor.data) for tensor in tensors.values())
        tensors.held = Held(self._memory, num_bytes)
        return tensors


def read_tensors(reply: Frame, names: frozenset[str]) -> Mapping[str, ImageTensor]:
    """What a worker made, by these names. Raises what comes of an answer that is none."""
    found = {}
    start = 0
    data = reply.data
    for name, dtype, shape in reply.fields["tensors"]:
        if name not in names:
            raise ValueError(f"the model's class takes no {name}")
        stop = start + prod(shape) * IMAGE_DTYPES[dtype]
        found[name] = ImageTensor(dtype, tuple(shape), bytes(memoryview(data)[start:stop]))
        start = stop
    if start != len(data):
        raise ValueError(f"{len(data)} bytes of which {start} are tensors")
    return found
