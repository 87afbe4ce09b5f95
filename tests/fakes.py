"""A fake for the seam of the router: a shard behind real gRPC.

`FakeShard` keeps the contract of proto/generate.proto with tokens from a script. Its KV cache is a
simulated one (`tests/fake_kv.py`): every misuse of a block is recorded in `violations` and answered
INVALID_ARGUMENT.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from proto import generate_pb2 as pb
from proto import generate_pb2_grpc as pb_grpc
from tests.byte_tokenizer import EOS_ID, VOCAB_SIZE
from tests.fake_kv import Row, SimulatedKv, Violation
from tests.fake_script import CAPITAL, SMALL_LETTERS, Faults, Followed, Script, letters

Context = grpc.aio.ServicerContext[Any, Any]


class FakeShard(pb_grpc.TextGenerationServiceServicer):
    """One rank. `script` maps a prefix to the next token; `checks_blocks` off saves time."""

    def __init__(
        self,
        *,
        script: Script = letters,
        num_blocks: int = 64,
        block_size: int = 4,
        vocab_size: int = VOCAB_SIZE,
        max_total_len: int | None = None,
        eos_token_ids: tuple[int, ...] = (EOS_ID,),
        model_id: str = "fake",
        rank: int = 0,
        world_size: int = 1,
        checks_blocks: bool = True,
        num_states: int = 0,
        keeps_states: bool = False,
        max_loras: int = 0,
    ) -> None:
        self.script = script
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_total_len = max_total_len or num_blocks * block_size
        self.eos_token_ids = eos_token_ids
        self.model_id = model_id
        self.rank = rank
        self.world_size = world_size
        self.checks_blocks = checks_blocks
        self.num_states = num_states
        self.keeps_states = keeps_states
        self.max_loras = max_loras
        # The folders of loaded adapters, by their numbers.
        self.adapters: dict[int, str] = {}
        self.urls: list[str] = []
        self.step_socket = ""
        self.faults = Faults()
        self.followed = Followed()
        # Constraints that were prepared, by their text.
        self.prepared: list[str] = []
        self.looked_at: list[tuple[bytes, tuple[int, ...]]] = []
        self.violations: list[str] = []
        self.calls: list[tuple[str, Any]] = []
        self.epoch = 0
        self.is_warm = False
        # The next step of the epoch.
        self._next_step = 1
        self._turns = asyncio.Condition()
        # What the shard remembers, by request; None: there was no Prefill yet.
        self.rows: dict[int, Row] | None = None
        self._kv = SimulatedKv(num_blocks, block_size)
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> str:
        """Listens at host:port (0: any) or unix:path; returns the address to dial."""
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        )
        pb_grpc.add_TextGenerationServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        await self._server.start()
        url = address if address.startswith("unix:") else f"127.0.0.1:{port}"
        self.urls = self.urls or [url]
        return url

    async def stop(self) -> None:
        """Ends at once; open calls fail."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def listens(self) -> bool:
        """Between `start` and `stop`."""
        return self._server is not None

    @property
    def num_held(self) -> int:
        """Requests that the shard remembers."""
        return len(self.rows or ())

    async def Health(self, request: pb.HealthRequest, context: Context) -> pb.HealthResponse:
        await self._enter("Health", request, context)
        return pb.HealthResponse()

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        await self._enter("Info", request, context)
        return pb.InfoResponse(
            model_id=self.model_id,
            model_type="fake",
            dtype="float32",
            device_type="cpu",
            executor="none",
            block_size=self.block_size,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_total_len,
            eos_token_ids=self.eos_token_ids,
            world_size=self.world_size,
            rank=self.rank,
            state_bytes=1024 if self.num_states else 0,
            keeps_states=self.keeps_states,
            max_loras=self.max_loras,
        )

    async def ServiceDiscovery(
        self, request: pb.ServiceDiscoveryRequest, context: Context
    ) -> pb.ServiceDiscoveryResponse:
        await self._enter("ServiceDiscovery", request, context)
        return pb.ServiceDiscoveryResponse(urls=self.urls)

    async def Warmup(self, request: pb.WarmupRequest, context: Context) -> pb.WarmupResponse:
        await self._enter("Warmup", request, context)
        await self._require_epoch(request, context)
        self.is_warm = True
        wanted_len = request.max_total_len if request.HasField("max_total_len") else None
        return pb.WarmupResponse(
            epoch=self._epoch_out(),
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_total_len=min(self.max_total_len, wanted_len or self.max_total_len),
            num_states=self.num_states,
        )

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.StepResponse:
        async with self._turn("Prefill", request, context):
            rows = self._running(request)
            chunks = self._chunks(rows, request.updates)
            for new in request.batch.requests:
                await self._require_adapter(new, context)
                rows[new.id] = Row(new, list(new.token_ids), list(new.block_ids), new.cached_len)
                chunks[new.id] = new.chunk_len
            return await self._step(rows, chunks, context)

    async def Decode(
        self, requests: AsyncIterator[pb.DecodeRequest], context: Context
    ) -> AsyncIterator[pb.StepResponse]:
        """Steps in their order; the next one may have come."""
        async for request in requests:
            yield await self._decode(request, context)

    async def _decode(self, request: pb.DecodeRequest, context: Context) -> pb.StepResponse:
        async with self._turn("Decode", request, context):
            if self.rows is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, "no batch")
            rows = self._running(request)
            chunks = self._chunks(rows, request.updates)
            return await self._step(rows, chunks, context)

    async def FilterBatch(
        self, request: pb.FilterBatchRequest, context: Context
    ) -> pb.FilterBatchResponse:
        await self._enter("FilterBatch", request, context)
        await self._require_epoch(request, context)
        if self.rows is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no batch")
        self.rows = {key: row for key, row in self.rows.items() if key in request.request_ids}
        return pb.FilterBatchResponse(epoch=self._epoch_out(), request_ids=list(self.rows))

    async def PrepareConstraint(
        self, request: pb.PrepareConstraintRequest, context: Context
    ) -> pb.PrepareConstraintResponse:
        await self._enter("PrepareConstraint", request, context)
        text = request.constraint.text
        if text in self.faults.refused_constraints:
            details = self.faults.refused_constraints[text]
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, details)
        was_cached = text in self.prepared
        self.prepared.append(text)
        return pb.PrepareConstraintResponse(
            compile_ns=0 if was_cached else 1_000_000,
            was_cached=was_cached,
            cache_bytes=len(set(self.prepared)) << 20,
        )

    async def LookAhead(
        self, request: pb.LookAheadRequest, context: Context
    ) -> pb.LookAheadResponse:
        await self._enter("LookAhead", request, context)
        self.looked_at.append((request.image.digest, tuple(request.span_ids)))
        return pb.LookAheadResponse(look_ns=1_000_000)

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: Context
    ) -> pb.LoadAdapterResponse:
        await self._enter("LoadAdapter", request, context)
        await self._require_epoch(request, context)
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        if request.adapter_id in self.adapters or not request.adapter_id:
            self.violations.append(f"adapter {request.adapter_id} is loaded again")
            await context.abort(invalid, self.violations[-1])
        if not Path(request.path, "adapter_config.json").is_file():
            await context.abort(invalid, f"{request.path}: has no adapter_config.json")
        if len(self.adapters) >= self.max_loras:
            full = grpc.StatusCode.RESOURCE_EXHAUSTED
            await context.abort(full, f"{len(self.adapters)} adapters are loaded (--max-loras)")
        self.adapters[request.adapter_id] = request.path
        return pb.LoadAdapterResponse(epoch=self._epoch_out(), rank=8, num_bytes=1 << 20)

    async def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: Context
    ) -> pb.UnloadAdapterResponse:
        await self._enter("UnloadAdapter", request, context)
        await self._require_epoch(request, context)
        if not request.adapter_id:
            self.adapters.clear()
        elif self.adapters.pop(request.adapter_id, None) is None:
            details = f"adapter {request.adapter_id} is not loaded"
            await context.abort(grpc.StatusCode.NOT_FOUND, details)
        users = [row for row in (self.rows or {}).values() if self._lacks_adapter(row.request)]
        if users:
            self.violations.append(f"adapter {request.adapter_id} leaves {len(users)} requests")
        return pb.UnloadAdapterResponse(epoch=self._epoch_out())

    async def ClearCache(
        self, request: pb.ClearCacheRequest, context: Context
    ) -> pb.ClearCacheResponse:
        await self._enter("ClearCache", request, context)
        if request.epoch < self.epoch:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"epoch {request.epoch} is over: epoch {self.epoch} has begun",
            )
        self.epoch = request.epoch
        self._next_step = 1
        self.rows = None
        self._kv.clear()
        return pb.ClearCacheResponse(
            epoch=self._epoch_out(), is_warm=self.is_warm, step_socket=self.step_socket
        )

    def restart(self) -> None:
        """As a new process: it is to be warmed up, and holds nothing."""
        self.is_warm = False
        self.rows = None
        self.adapters.clear()

    def _lacks_adapter(self, request: pb.Request) -> bool:
        return request.HasField("adapter_id") and request.adapter_id not in self.adapters

    async def _require_adapter(self, request: pb.Request, context: Context) -> None:
        if self._lacks_adapter(request):
            self.violations.append(f"request {request.id} is of an adapter that is not loaded")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.violations[-1])

    @asynccontextmanager
    async def _turn(
        self, method: str, request: pb.PrefillRequest | pb.DecodeRequest, context: Context
    ) -> AsyncIterator[None]:
        """The time of a step: after those before it, and before all others."""
        self.calls.append((method, request))
        async with self._turns:
            await self._turns.wait_for(lambda: request.step <= self._next_step)
            await self._fail(method, context)
            await self._require_epoch(request, context)
            yield
            self._next_step = request.step + 1
            self._turns.notify_all()

    def _running(self, request: pb.PrefillRequest | pb.DecodeRequest) -> dict[int, Row]:
        """What runs and is not dropped."""
        rows = self.rows or {}
        return {key: row for key, row in rows.items() if key not in request.dropped_ids}

    async def _enter(self, method: str, request: Any, context: Context) -> None:
        self.calls.append((method, request))
        await self._fail(method, context)

    async def _fail(self, method: str, context: Context) -> None:
        if method in self.faults.hangs:
            await asyncio.Event().wait()
        if self.faults.fails and self.faults.fails[0][0] == method:
            _, code, details = self.faults.fails.popleft()
            await context.abort(code, details)

    async def _require_epoch(self, request: Any, context: Context) -> None:
        if request.epoch != self.epoch:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"epoch {request.epoch} is not the present one, {self.epoch}",
            )

    def _epoch_out(self) -> int:
        return self.epoch + self.faults.epoch_offset

    def _chunks(self, rows: dict[int, Row], updates: Iterable[pb.RunningUpdate]) -> dict[int, int]:
        """Tokens to compute, by request."""
        chunks = {key: 1 if row.decodes else 0 for key, row in rows.items()}
        for update in updates:
            if update.request_id in rows:
                rows[update.request_id].block_ids += update.block_ids
                if update.HasField("chunk_len"):
                    row = rows[update.request_id]
                    chunk_len = update.chunk_len
                    if row.decodes and row.request.HasField("constraint"):
                        chunk_len = min(chunk_len, len(row.token_ids) - row.computed_len)
                    chunks[update.request_id] = chunk_len
        return chunks

    async def _step(
        self, rows: dict[int, Row], chunks: dict[int, int], context: Context
    ) -> pb.StepResponse:
        epoch = self.epoch
        if self.faults.delay_s:
            await asyncio.sleep(self.faults.delay_s)
        if self.epoch != epoch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"epoch {epoch} is over")
        generations = []
        try:
            for key, chunk_len in chunks.items():
                generation = self._compute(rows[key], chunk_len) if chunk_len else None
                if generation is None:
                    continue
                generations.append(generation)
                if generation.finish_reason:
                    del rows[key]
        except Violation as violation:
            self.violations.append(str(violation))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(violation))
        answer = pb.StepResponse(epoch=self._epoch_out(), forward_ns=2000, sample_ns=1000)
        answer.total_ns = 4000
        if self.rank == 0:
            answer.generations.extend(generations)
        self.rows = rows
        answer.request_ids.extend(rows)
        if self.faults.spoil is not None:
            self.faults.spoil(answer)
        return answer

    def _compute(self, row: Row, chunk_len: int) -> pb.Generation | None:
        request = row.request
        start = row.computed_len
        stop = row.computed_len + chunk_len
        if self.checks_blocks:
            self._kv.touch(row, start, stop)
        row.computed_len = stop
        for key in (request.id, None):
            if key in self.faults.row_errors:
                error = self.faults.row_errors.pop(key)
                return pb.Generation(
                    request_id=request.id, finish_reason=pb.FINISH_REASON_ERROR, error=error
                )
        generation = pb.Generation(request_id=request.id)
        if request.logprobs.prompt:
            first = max(1, request.logprobs.prompt_from)
            for token_id in row.token_ids[max(first, start) : min(stop, request.prompt_len)]:
                generation.prompt_logprobs.append(_logprob(token_id))
                if request.logprobs.num_top_tokens:
                    self._add_tops(generation.prompt_top_tokens.add().tokens, token_id, row)
        if stop < len(row.token_ids):
            return generation if generation.prompt_logprobs else None
        self._generate(row, generation)
        return generation

    def _generate(self, row: Row, generation: pb.Generation) -> None:
        """Draws a token and, under a constraint, takes what is forced behind it."""
        if not row.request.HasField("constraint"):
            self._add_token(row, generation)
            return
        num_left = 1
        while not self._is_over(row, generation) and num_left:
            num_left -= 1
            self._add_token(row, generation)
            if len(generation.tokens) == 1:
                num_left = self.followed.num_forced(row.token_ids)
        generation.num_forced = max(0, len(generation.tokens) - 1)
        if generation.finish_reason:
            generation.constraint_satisfied = self.followed.satisfied

    def _add_token(self, row: Row, generation: pb.Generation) -> None:
        token, generation.finish_reason = self._draw(row)
        generation.tokens.append(token)

    def _is_over(self, row: Row, generation: pb.Generation) -> bool:
        """The generation has its end, or nothing but the end may follow, which is one."""
        if not generation.finish_reason and self._next(row) in self.eos_token_ids:
            generation.finish_reason = pb.FINISH_REASON_CONSTRAINT_COMPLETE
        return bool(generation.finish_reason)

    def _draw(self, row: Row) -> tuple[pb.SampledToken, pb.FinishReason.ValueType]:
        stopping = row.request.stopping
        token_id = self._next(row)
        ends = (*(() if stopping.ignore_eos else self.eos_token_ids), *stopping.stop_token_ids)
        if token_id in ends and row.num_made < stopping.min_new_tokens:
            token_id = letters(row.token_ids)
        row.token_ids.append(token_id)
        row.decodes = True
        token = pb.SampledToken(id=token_id, logprob=_logprob(token_id))
        self._add_tops(token.top_tokens, token_id, row)
        if row.num_made >= stopping.max_new_tokens:
            return token, pb.FINISH_REASON_LENGTH
        if token_id in self.eos_token_ids and not stopping.ignore_eos:
            return token, pb.FINISH_REASON_EOS
        if token_id in stopping.stop_token_ids:
            return token, pb.FINISH_REASON_STOP_TOKEN
        if row.request.HasField("pause_len") and row.num_made >= row.request.pause_len:
            return token, pb.FINISH_REASON_PAUSED
        return token, pb.FINISH_REASON_NONE

    def _next(self, row: Row) -> int:
        """By the script; an adapter writes in capitals."""
        token_id = self.script(row.token_ids)
        is_letter = row.request.HasField("adapter_id") and token_id in SMALL_LETTERS
        return token_id + CAPITAL if is_letter else token_id

    def _add_tops(self, tops: Any, token_id: int, row: Row) -> None:
        for rank in range(row.request.logprobs.num_top_tokens):
            other = (token_id + rank) % self.vocab_size
            tops.add(id=other, logprob=_logprob(token_id) - rank)


def _logprob(token_id: int) -> float:
    return -(1 + token_id % 8) / 8


@asynccontextmanager
async def serving(*ranks: FakeShard) -> AsyncIterator[str]:
    """All ranks listening on the loopback; gives the address of rank 0."""
    urls = [await rank.start() for rank in ranks]
    for rank in ranks:
        rank.urls = urls
    try:
        yield urls[0]
    finally:
        await asyncio.gather(*(rank.stop() for rank in ranks))
