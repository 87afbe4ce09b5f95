"""A shard that answers each step with one letter for every row: the router's work without a model.

    python -m bench.quick_shard PATH [--step-s SECONDS]

It listens at the Unix socket PATH and says so on stdout. A step takes
`--step-s`, or no time at all.
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from bench.command_line import parser_of
from bench.processes import process, until
from proto import generate_pb2 as pb
from proto.frames import FrameReader, frame_bytes
from tests.byte_tokenizer import byte_ids, save_byte_tokenizer
from tests.fakes import Context, FakeShard

BLOCK_SIZE = 16
_MAX_TOTAL_LEN = 4096
_LISTENING = re.compile(r"(listening)\n")
_READY = re.compile(r"ready at (http://\S+)\n")


class QuickShard(FakeShard):
    """Answers each step with the same letter for every row, at next to no cost of its own."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(num_blocks=1 << 15, block_size=BLOCK_SIZE, max_total_len=_MAX_TOTAL_LEN)
        self._step_s = step_s
        self._left: dict[int, int] = {}
        self._token = pb.SampledToken(id=byte_ids("e")[0], logprob=-0.75)

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.StepResponse:
        """New rows draw their first token; running ones the next."""
        async with self._turn("Prefill", request, context):
            for new in request.batch.requests:
                self._left[new.id] = new.stopping.max_new_tokens
            return await self._answer(request)

    async def _decode(self, request: pb.DecodeRequest, context: Context) -> pb.StepResponse:
        async with self._turn("Decode", request, context):
            return await self._answer(request)

    async def step(self, request: pb.DecodeRequest) -> pb.StepResponse:
        """A step at the step socket."""
        async with self._turns:
            await self._turns.wait_for(lambda: request.step <= self._next_step)
            answer = await self._answer(request)
            self._next_step = request.step + 1
            self._turns.notify_all()
        return answer

    async def ClearCache(
        self, request: pb.ClearCacheRequest, context: Context
    ) -> pb.ClearCacheResponse:
        self._left.clear()
        return await super().ClearCache(request, context)

    async def _answer(self, request: pb.PrefillRequest | pb.DecodeRequest) -> pb.StepResponse:
        self.calls.clear()
        for key in request.dropped_ids:
            self._left.pop(key, None)
        if self._step_s:
            await asyncio.sleep(self._step_s)
        answer = pb.StepResponse(epoch=self.epoch)
        # Requests that skip this step; prompts come in one chunk here.
        paused = {
            one.request_id
            for one in request.updates
            if one.HasField("chunk_len") and not one.chunk_len
        }
        for key in [key for key in self._left if key not in paused]:
            self._left[key] -= 1
            if self._left[key]:
                answer.plain_request_ids.append(key)
                answer.plain_token_ids.append(self._token.id)
                answer.plain_logprobs.append(self._token.logprob)
                continue
            answer.generations.add(
                request_id=key, tokens=(self._token,), finish_reason=pb.FINISH_REASON_LENGTH
            )
            del self._left[key]
        answer.request_ids.extend(self._left)
        return answer


class _StepSocket(asyncio.Protocol):
    """Decode's messages without gRPC, as a shard takes them."""

    def __init__(self, shard: QuickShard) -> None:
        self._shard = shard
        self._frames = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for _, message in self._frames.feed(data):
            step = asyncio.ensure_future(self._shard.step(pb.DecodeRequest.FromString(message)))
            step.add_done_callback(self._answer)

    def _answer(self, step: asyncio.Task[pb.StepResponse]) -> None:
        """They end in their order."""
        if not self._transport.is_closing():
            self._transport.write(frame_bytes(step.result().SerializeToString()))


@dataclass(frozen=True, slots=True)
class RouterOverQuickShard:
    """A running router and the quick shard behind it; `path` is the shard's socket."""

    port: int
    router_pid: int
    shard_pid: int
    path: str
    tokenizer_folder: Path


@contextlib.contextmanager
def quick_shard(folder: Path, step_s: float = 0.0) -> Iterator[tuple[str, int]]:
    """A quick shard's process: its socket and its pid. `folder` keeps its log and socket."""
    path = f"{folder}/shard-0"
    log = folder / "shard.log"
    with process(log, "bench.quick_shard", path, "--step-s", str(step_s)) as shard:
        until(shard, log, _LISTENING)
        yield path, shard.pid


@contextlib.contextmanager
def router_over_quick_shard(
    folder: Path, *flags: str, step_s: float = 0.0
) -> Iterator[RouterOverQuickShard]:
    """Both processes, for the time of the block. `folder` keeps their logs and socket."""
    tokenizer_folder = save_byte_tokenizer(folder / "tokenizer")
    with quick_shard(folder, step_s) as (path, shard_pid):
        router_flags = ["--master-shard-uds-path", path, "--tokenizer-name", str(tokenizer_folder)]
        router_flags += ["--port", "0", "--max-batch-prefill-tokens", str(_MAX_TOTAL_LEN), *flags]
        log = folder / "router.log"
        with process(log, "router", *router_flags) as router:
            port = int(until(router, log, _READY).rpartition(":")[2])
            yield RouterOverQuickShard(port, router.pid, shard_pid, path, tokenizer_folder)


async def _serve(path: str, step_s: float) -> None:
    shard = QuickShard(step_s)
    shard.step_socket = f"{path}.steps"
    await asyncio.get_running_loop().create_unix_server(
        lambda: _StepSocket(shard), shard.step_socket
    )
    await shard.start(f"unix:{path}")
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("path", metavar="PATH")
    parser.add_argument("--step-s", type=float, default=0.0)
    args = parser.parse_args(argv)
    uvloop.run(_serve(args.path, args.step_s))


if __name__ == "__main__":
    main(sys.argv[1:])
