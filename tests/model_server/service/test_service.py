"""The shard's gRPC face: a real runner behind a real server at a socket of its own.

Messages to the classes of the contract and back, as the shard reads and writes them.
"""

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from constraints.spec import ConstraintSpec, Kind, ThoughtRule, Translation, Whitespace
from model_server.adapter import LinearShapes
from model_server.engine.distributed import World
from model_server.errors import ConfigRefused, InvalidStep, ShardError
from model_server.executor.executor import PagedModel
from model_server.service.device_thread import DeviceThread
from model_server.service.server import listening
from model_server.service.service import (
    Lease,
    TextGenerationService,
    sequence_from_pb,
    spec_from_pb,
    step_to_pb,
    updates_from_pb,
)
from model_server.step import PlainTokens, StepOutput
from processes.addresses import free_port
from proto import generate_pb2 as pb
from proto import generate_pb2_grpc as pb_grpc
from proto.contract import (
    FinishReason,
    Generation,
    ImageTensor,
    KeptState,
    LogprobParams,
    MaskEffect,
    OutputConstraint,
    RunningUpdate,
    SampledToken,
    TopToken,
)
from router.request.errors import StartupFailed
from router.shards.shards import Shards, ShardTimeouts
from router.shards.step_socket import StepSocket
from router.shards.wire import step_from_pb
from tests.model_server import lora_folders
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import NUM_BLOCKS, info_of, load, runner_of
from tests.native.compiler import needs_compiler

EPOCH = 7
SERVICE = "tandem.v1.TextGenerationService"
PROMPT = tuple(range(10, 30))


@dataclass
class Shard:
    """A served shard, as its client sees it."""

    path: Path
    stub: Any
    channel: Any  # the stubs of probes are typed for the blocking one alone
    fatal: list[ShardError] = field(default_factory=list)

    async def warm_up(self) -> pb.WarmupResponse:
        """Begin the epoch and make the pool."""
        await self.stub.ClearCache(pb.ClearCacheRequest(epoch=EPOCH))
        call = pb.WarmupRequest(
            epoch=EPOCH, max_step_tokens=64, max_batch_size=4, num_blocks=NUM_BLOCKS
        )
        answer: pb.WarmupResponse = await self.stub.Warmup(call)
        return answer

    async def decode(self, *steps: int) -> list[pb.StepResponse]:
        """The answers to so many messages of one call, by the numbers of their steps."""
        calls = [pb.DecodeRequest(epoch=EPOCH, step=step or None) for step in steps or (0,)]
        return [answer async for answer in self.stub.Decode(iter(calls))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("llama"))
    return load(folder, World(), max_loras=2)


@pytest.fixture
def service(model: PagedModel) -> Iterator[TextGenerationService]:
    info = replace(info_of(model), eos_token_ids=())
    with DeviceThread() as device_thread:
        runner = runner_of(model, World())
        yield TextGenerationService(runner, info, ("unix:///run/x-0",), device_thread)


@pytest.fixture
async def shard(service: TextGenerationService, tmp_path: Path) -> AsyncIterator[Shard]:
    path = tmp_path / "s"
    fatal: list[ShardError] = []
    async with (
        listening(service, path, fatal.append),
        grpc.aio.insecure_channel(f"unix:{path}") as channel,
    ):
        yield Shard(path, pb_grpc.TextGenerationServiceStub(channel), channel, fatal)


def _unexpected(error: ShardError) -> None:
    raise AssertionError(error)


def request(request_id: int, **changes: Any) -> pb.Request:
    """A greedy request of 20 prompt tokens, computed at once."""
    fields: dict[str, Any] = {
        "id": request_id,
        "token_ids": PROMPT,
        "prompt_len": 20,
        "chunk_len": 20,
        "block_ids": [request_id * 3, request_id * 3 + 1, request_id * 3 + 2],
        "sampling": pb.SamplingParameters(
            temperature=1.0, top_p=1.0, typical_p=1.0, repetition_penalty=1.0
        ),
        "stopping": pb.StoppingParameters(max_new_tokens=8),
        **changes,
    }
    return pb.Request(**fields)


def prefill(
    *requests: pb.Request, epoch: int = EPOCH, step: int | None = None
) -> pb.PrefillRequest:
    return pb.PrefillRequest(epoch=epoch, batch=pb.Batch(requests=requests), step=step)


async def test_a_life_from_the_first_call_to_the_last(shard: Shard) -> None:
    stub = shard.stub
    assert (await stub.Info(pb.InfoRequest())).vocab_size == tiny_models.VOCAB_SIZE
    discovery = await stub.ServiceDiscovery(pb.ServiceDiscoveryRequest())
    assert list(discovery.urls) == ["unix:///run/x-0"]
    limits = await shard.warm_up()
    assert (limits.epoch, limits.num_blocks) == (EPOCH, NUM_BLOCKS)

    first = await stub.Prefill(prefill(request(1)))
    joined = await stub.Prefill(prefill(request(2)))
    (both,) = await shard.decode()
    kept = await stub.FilterBatch(pb.FilterBatchRequest(epoch=EPOCH, request_ids=[2, 3]))
    (one,) = await shard.decode()
    cleared = await stub.ClearCache(pb.ClearCacheRequest(epoch=EPOCH))

    answers = (first, joined, both, kept, one, cleared)
    assert [answer.epoch for answer in answers] == [EPOCH] * len(answers)
    held = [list(answer.request_ids) for answer in (first, joined, both, kept, one)]
    assert held == [[1], [1, 2], [1, 2], [2], [2]]
    tokens: dict[int, list[int]] = {1: [], 2: []}
    for answer in (first, joined, both, one):
        for generation in step_from_pb(answer, 0).generations:
            tokens[generation.request_id] += [token.token_id for token in generation.tokens]
    expected = tiny_models.greedy(tiny_models.build("llama"), list(PROMPT), 3)
    assert tokens == {1: expected, 2: expected}
    assert shard.fatal == []


@needs_compiler
async def test_an_adapter_is_loaded_used_and_unloaded(shard: Shard, tmp_path: Path) -> None:
    stub = shard.stub
    await shard.warm_up()
    shapes: LinearShapes = {"model.layers.0.mlp.down_proj": (64, 96)}

    def load_call(adapter_id: int, path: Path, epoch: int = EPOCH) -> pb.LoadAdapterRequest:
        return pb.LoadAdapterRequest(epoch=epoch, adapter_id=adapter_id, path=str(path))

    folder = lora_folders.save(tmp_path / "a", shapes, rank=3)
    loaded = await stub.LoadAdapter(load_call(4, folder))
    assert (loaded.epoch, loaded.rank) == (EPOCH, 3)
    # Of 32 columns of 96 and 64 of 4 numbers, in float32.
    assert loaded.num_bytes == 4 * (32 * 96 + 64 * 4)
    await stub.LoadAdapter(load_call(5, folder))
    new = (request(1), request(2, adapter_id=4), request(3, adapter_id=5))
    answer = await stub.Prefill(prefill(*new))
    plain, four, five = answer.plain_logprobs
    assert four == five != plain
    shapes_of_none: LinearShapes = {"lm_head": (160, 64)}
    refused = lora_folders.save(tmp_path / "b", shapes_of_none)
    for method, call, code, said in (
        ("LoadAdapter", load_call(6, folder), "RESOURCE_EXHAUSTED", "--max-loras is 2"),
        ("LoadAdapter", load_call(4, refused), "INVALID_ARGUMENT", "it changes lm_head, which is"),
        ("LoadAdapter", load_call(4, folder, 3), "FAILED_PRECONDITION", "epoch 3 is not"),
        ("UnloadAdapter", pb.UnloadAdapterRequest(epoch=EPOCH, adapter_id=9), "NOT_FOUND", "9 is"),
        ("Prefill", prefill(request(7, adapter_id=9)), "NOT_FOUND", "adapter 9 is not loaded"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=said) as failed:
            await getattr(stub, method)(call)
        assert failed.value.code() == grpc.StatusCode[code], method
    await stub.ClearCache(pb.ClearCacheRequest(epoch=EPOCH))
    await stub.UnloadAdapter(pb.UnloadAdapterRequest(epoch=EPOCH, adapter_id=4))
    await stub.LoadAdapter(load_call(6, folder))
    await stub.UnloadAdapter(pb.UnloadAdapterRequest(epoch=EPOCH))
    await stub.UnloadAdapter(pb.UnloadAdapterRequest(epoch=EPOCH))
    await stub.LoadAdapter(load_call(7, folder))
    assert shard.fatal == []


@pytest.mark.parametrize(
    ("method", "call", "code", "said"),
    [
        pytest.param(
            "Decode",
            pb.DecodeRequest(epoch=EPOCH),
            grpc.StatusCode.NOT_FOUND,
            "no batch is held here",
            id="no-batch",
        ),
        pytest.param(
            "Prefill",
            prefill(request(1), epoch=EPOCH - 1),
            grpc.StatusCode.FAILED_PRECONDITION,
            "epoch 6 is not the present one, 7",
            id="stale-epoch",
        ),
        pytest.param(
            "ClearCache",
            pb.ClearCacheRequest(epoch=EPOCH - 1),
            grpc.StatusCode.FAILED_PRECONDITION,
            "epoch 6 is over: epoch 7 has begun",
            id="epoch-that-is-over",
        ),
        pytest.param(
            "Prefill",
            prefill(request(5, prompt_len=21)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "request 5: prompt_len 21 is not in 1..20",
            id="contradiction",
        ),
        pytest.param(
            "Prefill",
            prefill(request(5, block_ids=[1])),
            grpc.StatusCode.INVALID_ARGUMENT,
            "request 5: 1 blocks of 16 tokens do not cover 20",
            id="too-few-blocks",
        ),
    ],
)
async def test_a_refusal_has_its_code_and_names_the_numbers_and_the_shard_goes_on(
    shard: Shard, method: str, call: Any, code: grpc.StatusCode, said: str
) -> None:
    await shard.warm_up()
    work = shard.decode() if method == "Decode" else getattr(shard.stub, method)(call)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await work
    assert refusal.value.code() is code
    assert said in str(refusal.value.details())
    assert shard.fatal == []
    assert list((await shard.stub.Prefill(prefill(request(1)))).request_ids) == [1]


async def test_steps_that_are_sent_ahead_are_answered_in_their_order(shard: Shard) -> None:
    await shard.warm_up()
    await shard.stub.Prefill(prefill(request(1), step=1))
    answers = await shard.decode(2, 3, 4)
    tokens = [token_id for answer in answers for token_id in answer.plain_token_ids]
    assert tokens == tiny_models.greedy(tiny_models.build("llama"), list(PROMPT), 4)[1:]


async def test_steps_at_the_step_socket_have_the_same_answers(shard: Shard) -> None:
    await shard.warm_up()
    begun = await shard.stub.ClearCache(pb.ClearCacheRequest(epoch=EPOCH))
    steps = await StepSocket.connect(begun.step_socket)
    await shard.stub.Prefill(prefill(request(1), step=1))
    calls = [pb.DecodeRequest(epoch=EPOCH, step=step) for step in (2, 3, 4)]
    answers = await asyncio.gather(*[steps.step(call, 30.0) for call in calls])
    tokens = [token_id for answer in answers for token_id in answer.plain_token_ids]
    assert tokens == tiny_models.greedy(tiny_models.build("llama"), list(PROMPT), 4)[1:]
    steps.close()


async def test_a_step_that_fails_ends_the_call_and_those_behind_it_in_silence(
    shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    await shard.warm_up()
    await shard.stub.Prefill(prefill(request(1), step=1))
    steps = [pb.DecodeRequest(epoch=EPOCH, step=step) for step in (2, 3, 4)]
    steps[1].updates.extend([pb.RunningUpdate(request_id=1)] * 2)
    call = shard.stub.Decode(iter(steps))
    assert list((await call.read()).request_ids) == [1]
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call.read()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.value.details() == "updates name a request twice"
    gc.collect()
    assert caplog.messages == []


async def test_bytes_that_are_no_step_are_refused(shard: Shard) -> None:
    await shard.warm_up()
    call = shard.channel.stream_stream(f"/{SERVICE}/Decode")([b"\xff"])
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call.read()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert shard.fatal == []


async def test_running_out_of_memory_is_reported_and_survived(
    shard: Shard, model: PagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shard.warm_up()

    def fail(inputs: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(model, "forward", fail)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await shard.stub.Prefill(prefill(*(request(each) for each in range(1, 7))))
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert shard.fatal == []


async def test_an_unexpected_error_ends_the_shard(
    shard: Shard, model: PagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shard.warm_up()

    def fail(inputs: object) -> None:
        raise RuntimeError("the device fell off")

    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await shard.stub.Prefill(prefill(request(1)))
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert [str(error) for error in shard.fatal] == ["Prefill: RuntimeError: the device fell off"]


async def test_health_answers_while_a_step_runs(
    shard: Shard, model: PagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shard.warm_up()
    begun = threading.Event()
    released = threading.Event()
    forward = model.forward

    def wait_and_compute(inputs: Any) -> Any:
        begun.set()
        assert released.wait(30.0)
        return forward(inputs)

    monkeypatch.setattr(model, "forward", wait_and_compute)
    step = asyncio.ensure_future(shard.stub.Prefill(prefill(request(1))))
    try:
        assert await asyncio.to_thread(begun.wait, 30.0)
        await shard.stub.Health(pb.HealthRequest(), timeout=10.0)
        assert not step.done()
    finally:
        released.set()
    assert list((await step).request_ids) == [1]


async def test_reflection_lists_the_service(shard: Shard) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(shard.channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = [answer async for answer in stub.ServerReflectionInfo(iter([asked]))]
    names = {service.name for service in answers[0].list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_the_standard_health_service_says_serving(shard: Shard, name: str) -> None:
    stub: Any = health_pb2_grpc.HealthStub(shard.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_stale_socket_is_replaced_and_gone_at_the_end(
    service: TextGenerationService, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    async with (
        listening(service, path, _unexpected),
        grpc.aio.insecure_channel(f"unix:{path}") as channel,
    ):
        stub: Any = pb_grpc.TextGenerationServiceStub(channel)
        assert (await stub.Info(pb.InfoRequest())).model_id == "tiny"
    assert not path.exists()


async def test_a_socket_in_use_is_refused_and_left_alone(
    shard: Shard, service: TextGenerationService
) -> None:
    with pytest.raises(ConfigRefused, match=f"socket {shard.path} is in use"):
        async with listening(service, shard.path, _unexpected):
            pass
    assert (await shard.stub.Info(pb.InfoRequest())).model_id == "tiny"


async def test_what_a_router_had_is_freed_when_it_says_nothing_and_the_pool_stays(
    service: TextGenerationService, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    async with (
        listening(service, path, _unexpected, lease_s=1.0),
        grpc.aio.insecure_channel(f"unix:{path}") as channel,
    ):
        shard = Shard(path, pb_grpc.TextGenerationServiceStub(channel), channel, [])
        assert not (await shard.stub.ClearCache(pb.ClearCacheRequest(epoch=EPOCH))).is_warm
        await shard.warm_up()
        await shard.stub.Prefill(prefill(request(1)))
        for _ in range(4):
            await asyncio.sleep(0.3)
            await shard.stub.Health(pb.HealthRequest())
        await shard.decode()
        await asyncio.sleep(1.5)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await shard.decode()
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await shard.stub.ClearCache(pb.ClearCacheRequest(epoch=EPOCH + 1))).is_warm


async def test_a_call_under_way_keeps_the_lease_however_long_it_takes() -> None:
    lease = Lease(0.02)
    ends = asyncio.Event()

    async def release() -> None:
        ends.set()

    watching = asyncio.create_task(lease.run(release))
    with lease.call():
        await asyncio.sleep(0.1)
        assert not ends.is_set()
    await ends.wait()
    watching.cancel()


async def called_with(address: str, **metadata: str) -> str:
    """The vocabulary's size, or the code of the refusal."""
    shown = tuple(metadata.items())
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.TextGenerationServiceStub(channel)
        try:
            return str((await stub.Info(pb.InfoRequest(), metadata=shown)).vocab_size)
        except grpc.aio.AioRpcError as refused:
            return f"{refused.code().name}: {refused.details()}"


async def test_a_model_that_does_not_see_says_so_to_who_asks_it_to_look(shard: Shard) -> None:
    for image, reason in (
        (pb.Image(span_len=1), "images are not served here"),
        (pb.Image(tensors={"x": pb.ImageTensor(dtype="int8")}), "dtype 'int8' is none of"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=reason) as refused:
            await shard.stub.LookAhead(pb.LookAheadRequest(image=image, span_ids=[1]))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_at_a_port_only_who_shows_the_token_is_served_and_nobody_learns_the_methods(
    service: TextGenerationService,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with listening(service, address, _unexpected, token="a-secret-of-both"):
        right = "Bearer a-secret-of-both"
        refusal = "UNAUTHENTICATED: the router's SHARD_TOKEN"
        assert await called_with(address, authorization=right) == str(tiny_models.VOCAB_SIZE)
        assert (await called_with(address)).startswith(refusal)
        assert (await called_with(address, authorization=right[:-1])).startswith(refusal)
        async with grpc.aio.insecure_channel(address) as channel:
            probe: Any = health_pb2_grpc.HealthStub(channel)
            await probe.Check(health_pb2.HealthCheckRequest())
            reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            ask: Any = channel.unary_unary(reflection)
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await ask(b"", metadata=(("authorization", right),))
            assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        shards = await Shards.connect(address, ShardTimeouts(), 10, token="a-secret-of-both")
        await shards.close()
        with pytest.raises(StartupFailed, match="SHARD_TOKEN is missing or not the shard's"):
            await Shards.connect(address, ShardTimeouts(), 11, token="another-secret-x")


def new_request(**changes: object) -> pb.Request:
    message = pb.Request(
        id=7,
        token_ids=[5, 6, 7],
        prompt_len=3,
        cached_len=0,
        chunk_len=3,
        block_ids=[1],
        sampling=pb.SamplingParameters(temperature=1.0, repetition_penalty=1.0),
        stopping=pb.StoppingParameters(max_new_tokens=4),
    )
    message.MergeFrom(pb.Request(**changes))  # type: ignore[arg-type]
    return message


arrived = sequence_from_pb


def test_absent_parameters_are_none() -> None:
    sequence = arrived(new_request())
    assert sequence.token_ids == (5, 6, 7)
    sampling = sequence.sampling
    assert (sampling.top_k, sampling.top_p, sampling.typical_p, sampling.min_p) == (None,) * 4


def test_an_image_arrives_with_its_tensors() -> None:
    pixels = pb.ImageTensor(dtype="bfloat16", shape=[1, 2], data=bytes(4))
    image = pb.Image(digest=bytes(16), start=1, span_len=2, tensors={"pixel_values": pixels})
    (arrived_image,) = arrived(new_request(images=[image])).images
    assert arrived_image.stop == 3
    assert arrived_image.tensors == {"pixel_values": ImageTensor("bfloat16", (1, 2), bytes(4))}
    assert arrived(new_request()).images == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 2}, "an image of 2 tokens at 2 is not within 0..3"),
        ({"span_len": 0}, "an image of 0 tokens at 1 is not within 0..3"),
        ({"dtype": "object"}, "dtype 'object' is none of float32, bfloat16, int64, bool"),
        ({"shape": [3]}, r"4 bytes are no bfloat16 of shape \[3\]: that has 6"),
    ],
)
def test_an_image_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    of_tensor: dict[str, Any] = {"dtype": "bfloat16", "shape": [2], "data": bytes(4)}
    of_image: dict[str, Any] = {"digest": bytes(16), "start": 1, "span_len": 2}
    for name, value in changes.items():
        (of_tensor if name in of_tensor else of_image)[name] = value
    image = pb.Image(**of_image, tensors={"pixel_values": pb.ImageTensor(**of_tensor)})
    with pytest.raises(InvalidStep, match=message):
        arrived(new_request(images=[image]))


def test_images_that_overlap_are_refused() -> None:
    images = [pb.Image(start=0, span_len=2), pb.Image(start=1, span_len=1)]
    with pytest.raises(InvalidStep, match=r"an image of 1 tokens at 1 is not within 2\.\.3"):
        arrived(new_request(images=images))


def test_what_is_known_of_a_constraint_arrives() -> None:
    message = new_request(constraint=pb.Constraint(kind=pb.CONSTRAINT_KIND_REGEX, text="a"))
    sequence = arrived(message)
    assert sequence.constraint is not None
    assert sequence.constraint.translation is None
    translation = message.constraint.translation
    translation.grammar = "start: /a/"
    translation.not_enforced.append("/a")
    translation.hints.append(b"\xff")
    for token_ids in (None, (), (4, 5)):
        if token_ids is not None:
            translation.completion.token_ids[:] = token_ids
            translation.completion.SetInParent()
        constraint = arrived(message).constraint
        assert constraint is not None
        assert constraint.translation == Translation(
            "start: /a/", ("/a",), (b"\xff",), completion=token_ids
        )


def test_a_pause_and_where_scores_begin_arrive() -> None:
    message = new_request(
        pause_len=2,
        logprobs=pb.LogprobParameters(prompt=True, prompt_from=1),
    )
    sequence = arrived(message)
    assert sequence.pause_len == 2
    assert sequence.logprobs == LogprobParams(prompt=True, prompt_from=1)
    assert arrived(new_request()).pause_len is None


def test_the_slots_of_its_states_arrive() -> None:
    plain = arrived(new_request())
    assert (plain.state_ids, plain.from_state, plain.kept_states) == ((), None, ())
    kept = [pb.KeptState(position=2, state_id=8), pb.KeptState(position=3, state_id=1)]
    sequence = arrived(new_request(prompt_len=3, state_ids=[4, 0], from_state=0, kept_states=kept))
    assert (sequence.state_ids, sequence.from_state) == ((4, 0), 0)
    assert sequence.kept_states == (KeptState(2, 8), KeptState(3, 1))


def test_a_watermark_is_made_on_request() -> None:
    asking = arrived(new_request(sampling=pb.SamplingParameters(watermark=True)))
    assert asking.sampling.watermark
    assert not arrived(new_request()).sampling.watermark


def test_a_constraint_comes_with_its_stop_rule() -> None:
    asked = pb.Constraint(
        kind=pb.CONSTRAINT_KIND_JSON_SCHEMA,
        text="{}",
        whitespace=pb.CONSTRAINT_WHITESPACE_COMPACT,
        lenient=True,
        cuts=True,
    )
    stopping = pb.StoppingParameters(stop_strings=["\n\n", "END"], keep_stop_string=True)
    sequence = arrived(new_request(constraint=asked, stopping=stopping))
    assert (sequence.stop.stop_strings, sequence.stop.keep_stop_string) == (("\n\n", "END"), True)
    assert sequence.constraint == OutputConstraint(
        ConstraintSpec(Kind.JSON_SCHEMA, "{}", Whitespace.COMPACT, lenient=True),
        cuts=True,
    )


@pytest.mark.parametrize("max_len", [None, 0, 7])
def test_a_thought_comes_with_its_constraint(max_len: int | None) -> None:
    thought = pb.Thought(opener="<think>", closer="</think>", max_len=max_len)
    asked = pb.Constraint(kind=pb.CONSTRAINT_KIND_REGEX, text="a", thought=thought)
    constraint = arrived(new_request(constraint=asked)).constraint
    assert constraint is not None
    assert constraint.thought == ThoughtRule("<think>", "</think>", is_begun=False, max_len=max_len)


@pytest.mark.parametrize("nothing", [{}, {"constraint": pb.Constraint()}])
def test_no_constraint_is_none(nothing: dict[str, object]) -> None:
    assert arrived(new_request(**nothing)).constraint is None


@pytest.mark.parametrize("kind", [k for k in pb.ConstraintKind.values() if k])
def test_every_kind_of_the_wire_is_known(kind: pb.ConstraintKind.ValueType) -> None:
    name = spec_from_pb(pb.Constraint(kind=kind)).kind.name
    assert pb.ConstraintKind.Name(kind) == f"CONSTRAINT_KIND_{name}"


def test_an_update_of_zero_tokens_is_not_the_default() -> None:
    message = pb.DecodeRequest(
        updates=[
            pb.RunningUpdate(request_id=1, chunk_len=0),
            pb.RunningUpdate(request_id=2, block_ids=[4]),
        ],
    )
    updates = (RunningUpdate(1, (), 0), RunningUpdate(2, (4,), None))
    assert updates_from_pb(message) == updates


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param(new_request(chunk_len=9), "chunk_len 9 exceeds its 3 tokens", id="chunk"),
        pytest.param(new_request(prompt_len=8), "prompt_len 8 is not in 1..3", id="prompt"),
        pytest.param(pb.Request(id=3), "prompt_len 0", id="empty"),
        pytest.param(
            new_request(prompt_len=2, kept_states=[pb.KeptState(position=4)]),
            "a state is to be kept at 4, which is not in 1..3",
            id="kept behind the end",
        ),
        pytest.param(
            new_request(prompt_len=3, kept_states=[pb.KeptState(position=2)] * 2),
            "a state is to be kept at 2, which is not in 3..3",
            id="kept twice",
        ),
        pytest.param(
            new_request(constraint=pb.Constraint(kind=99, text="a+")),  # type: ignore[arg-type]
            "kind or whitespace 99 is not known",
            id="constraint",
        ),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(message: pb.Request, said: str) -> None:
    with pytest.raises(InvalidStep, match=said):
        arrived(message)


def test_a_step_is_answered_with_tokens_reasons_and_what_is_left() -> None:
    token = SampledToken(3, -0.5, (TopToken(3, -0.5), TopToken(9, -1.0)), MaskEffect.FORCED)
    output = StepOutput(
        others=(
            Generation(1, (token,), FinishReason.EOS),
            Generation(2, (), FinishReason.ERROR, "NaN", is_refused=True),
            Generation(3, (), prompt_logprobs=(-1.0, -2.0)),
            Generation(
                4,
                (token, SampledToken(5, 0.0)),
                FinishReason.CONSTRAINT_COMPLETE,
                num_forced=1,
                constraint_satisfied=True,
            ),
            Generation(5, (token, token), num_drafts=3, num_accepted=1),
        ),
        request_ids=(3,),
        forward_ns=1,
        sample_ns=2,
        total_ns=3,
        mask_ns=4,
        num_masked_rows=5,
        mask_wait_ns=6,
    )
    message = step_to_pb(output, epoch=9)
    first, second, third, fourth, fifth = message.generations
    assert message.epoch == 9
    assert [t.id for t in first.tokens[0].top_tokens] == [3, 9]
    assert first.tokens[0].mask_effect == pb.MASK_EFFECT_FORCED
    assert fourth.tokens[1].mask_effect == pb.MASK_EFFECT_NONE
    assert first.finish_reason == pb.FINISH_REASON_EOS
    assert (second.finish_reason, second.error) == (pb.FINISH_REASON_ERROR, "NaN")
    assert (second.is_refused, first.is_refused) == (True, False)
    assert list(third.prompt_logprobs) == [-1.0, -2.0]
    assert fourth.finish_reason == pb.FINISH_REASON_CONSTRAINT_COMPLETE
    assert (len(fourth.tokens), fourth.num_forced, fourth.constraint_satisfied) == (2, 1, True)
    assert (fifth.num_drafts, fifth.num_accepted) == (3, 1)
    assert not first.HasField("constraint_satisfied")
    assert list(message.request_ids) == [3]
    assert (message.mask_ns, message.num_masked_rows, message.mask_wait_ns) == (4, 5, 6)


def test_of_plain_rows_there_are_columns_and_the_router_reads_what_the_shard_said() -> None:
    token = SampledToken(3, -0.5)
    others = (
        Generation(2, (token,), FinishReason.LENGTH),
        Generation(4, (SampledToken(5, -1.0, (TopToken(5, -1.0),)),)),
        Generation(5, (token, token), num_drafts=1, num_accepted=1),
        Generation(6, is_late=True),
    )
    plain = PlainTokens([1, 3], [3, 4], [-0.5, -0.25])
    output = StepOutput(others, (1, 3), forward_ns=1, sample_ns=2, total_ns=3, plain=plain)
    assert output.generations[:2] == (
        Generation(1, (token,)),
        Generation(3, (SampledToken(4, -0.25),)),
    )
    message = step_to_pb(output, epoch=9)
    assert list(message.plain_request_ids) == [1, 3]
    assert list(message.plain_token_ids) == [3, 4]
    assert list(message.plain_logprobs) == [-0.5, -0.25]
    read = step_from_pb(message, 0).generations
    assert read == output.generations


def test_a_late_row_is_answered_with_the_scores_of_its_prompt() -> None:
    late = Generation(1, prompt_logprobs=(-1.0,), is_late=True)
    output = StepOutput(
        others=(late,),
        request_ids=(1,),
        forward_ns=1,
        sample_ns=2,
        total_ns=3,
    )
    (generation,) = step_to_pb(output, epoch=9).generations
    assert (generation.is_late, list(generation.prompt_logprobs), list(generation.tokens)) == (
        True,
        [-1.0],
        [],
    )
