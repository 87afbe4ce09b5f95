"""A shard that answers each step with one letter for every row: the router's work without a model.

    python -m bench.quick_shard PATH [--step-s SECONDS]

It listens at the Unix socket PATH and says so on stdout. A step takes
`--step-s`, or no time at all.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence

import uvloop

from proto import generate_pb2 as pb
from tests.byte_tokenizer import byte_ids
from tests.fakes import Context, FakeShard

BLOCK_SIZE = 16
MAX_TOTAL_LEN = 4096


class QuickShard(FakeShard):
    """Answers each step with the same letter for every row, at next to no cost of its own."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(num_blocks=1 << 15, block_size=BLOCK_SIZE, max_total_len=MAX_TOTAL_LEN)
        self._step_s = step_s
        self._left: dict[int, int] = {}
        self._token = pb.SampledToken(id=byte_ids("e")[0], logprob=-0.75)

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.StepResponse:
        """New rows draw their first token; running ones the next."""
        for new in request.batch.requests:
            self._left[new.id] = new.stopping.max_new_tokens
        return await self._answer(request.cached_batch_id or request.batch.id, request.updates)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.StepResponse:
        """Every row draws a token."""
        return await self._answer(request.batch_ids[0], request.updates)

    async def FilterBatch(
        self, request: pb.FilterBatchRequest, context: Context
    ) -> pb.FilterBatchResponse:
        """Forgets the others."""
        self._left = {key: self._left[key] for key in request.request_ids}
        batch = pb.CachedBatch(id=request.batch_id, request_ids=list(self._left))
        return pb.FilterBatchResponse(epoch=self.epoch, batch=batch)

    async def ClearCache(
        self, request: pb.ClearCacheRequest, context: Context
    ) -> pb.ClearCacheResponse:
        """Forgets all."""
        self._left.clear()
        self.epoch = request.epoch
        return pb.ClearCacheResponse(epoch=self.epoch)

    async def _answer(self, batch_id: int, updates: Iterable[pb.RunningUpdate]) -> pb.StepResponse:
        if self._step_s:
            await asyncio.sleep(self._step_s)
        answer = pb.StepResponse(epoch=self.epoch)
        # Who sits the step out; prompts come in one chunk here.
        paused = {
            one.request_id for one in updates if one.HasField("chunk_len") and not one.chunk_len
        }
        for key in [key for key in self._left if key not in paused]:
            self._left[key] -= 1
            generation = answer.generations.add(request_id=key, tokens=(self._token,))
            if not self._left[key]:
                generation.finish_reason = pb.FINISH_REASON_LENGTH
                del self._left[key]
        if self._left:
            answer.batch.id = batch_id
            answer.batch.request_ids.extend(self._left)
        return answer


async def _serve(path: str, step_s: float) -> None:
    shard = QuickShard(step_s)
    await shard.start(f"unix:{path}")
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main(argv: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.quick_shard", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("path", metavar="PATH")
    parser.add_argument("--step-s", type=float, default=0.0)
    args = parser.parse_args(argv)
    uvloop.run(_serve(args.path, args.step_s))


if __name__ == "__main__":
    main(sys.argv[1:])
