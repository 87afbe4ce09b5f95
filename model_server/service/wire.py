"""Between protobuf and the contract: the only file of this tier that names message fields."""

from dataclasses import dataclass

from constraints.spec import ConstraintSpec
from constraints.translation import Translation
from model_server.engine.step import StepOutput
from model_server.errors import InvalidStep
from proto import generate_pb2 as pb
from proto.contract import (
    Generation,
    LogprobParams,
    ModelInfo,
    NewSequence,
    OutputConstraint,
    PoolLimits,
    RunningUpdate,
    SampledToken,
    SamplingParams,
    StopParams,
    TopToken,
)
from proto.convert import (
    CONSTRAINT_KINDS,
    FINISH_REASONS,
    WHITESPACES,
    from_message,
    to_message,
)

_KIND_FROM_PB = {number: kind for kind, number in CONSTRAINT_KINDS.items()}
_WHITESPACE_FROM_PB = {number: whitespace for whitespace, number in WHITESPACES.items()}


@dataclass(frozen=True, slots=True)
class PrefillCall:
    """The arguments of Runner.prefill."""

    batch_id: int
    new: tuple[NewSequence, ...]
    cached_batch_id: int | None
    updates: tuple[RunningUpdate, ...]


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """The arguments of Runner.decode."""

    batch_ids: tuple[int, ...]
    updates: tuple[RunningUpdate, ...]


@dataclass(frozen=True, slots=True)
class WarmupCall:
    """The arguments of Runner.warmup."""

    max_step_tokens: int
    max_batch_size: int
    max_total_len: int | None
    num_blocks: int | None


def warmup_from_pb(message: pb.WarmupRequest) -> WarmupCall:
    """Raises InvalidStep for a step or a batch of nothing."""
    if message.max_step_tokens < 1 or message.max_batch_size < 1:
        raise InvalidStep(
            f"max_step_tokens {message.max_step_tokens} and max_batch_size "
            f"{message.max_batch_size} must both be at least 1"
        )
    return WarmupCall(
        max_step_tokens=message.max_step_tokens,
        max_batch_size=message.max_batch_size,
        max_total_len=message.max_total_len if message.HasField("max_total_len") else None,
        num_blocks=message.num_blocks if message.HasField("num_blocks") else None,
    )


def prefill_from_pb(message: pb.PrefillRequest) -> PrefillCall:
    """Raises InvalidStep when a request contradicts itself."""
    return PrefillCall(
        batch_id=message.batch.id,
        new=tuple(_sequence_from_pb(request) for request in message.batch.requests),
        cached_batch_id=(message.cached_batch_id if message.HasField("cached_batch_id") else None),
        updates=tuple(from_message(update, RunningUpdate) for update in message.updates),
    )


def decode_from_pb(message: pb.DecodeRequest) -> DecodeCall:
    """Raises InvalidStep when no batch is named."""
    if not message.batch_ids:
        raise InvalidStep("batch_ids is empty: Decode needs at least one batch")
    return DecodeCall(
        batch_ids=tuple(message.batch_ids),
        updates=tuple(from_message(update, RunningUpdate) for update in message.updates),
    )


def _sequence_from_pb(message: pb.Request) -> NewSequence:
    constraint = None
    if message.HasField("constraint") and message.constraint.kind != pb.CONSTRAINT_KIND_NONE:
        constraint = OutputConstraint(
            spec=spec_from_pb(message.constraint),
            cuts=message.constraint.cuts,
            translation=translation_from_pb(message.constraint),
        )
    try:
        return NewSequence(
            request_id=message.id,
            token_ids=tuple(message.token_ids),
            prompt_len=message.prompt_len,
            cached_len=message.cached_len,
            chunk_len=message.chunk_len,
            block_ids=tuple(message.block_ids),
            sampling=from_message(message.sampling, SamplingParams),
            stop=from_message(message.stopping, StopParams),
            logprobs=from_message(message.logprobs, LogprobParams),
            constraint=constraint,
            pause_len=message.pause_len if message.HasField("pause_len") else None,
        )
    except ValueError as error:
        raise InvalidStep(str(error)) from error


def translation_from_pb(message: pb.Constraint) -> Translation | None:
    """What the router has found of a constraint, if it says so."""
    if not message.HasField("translation"):
        return None
    found = message.translation
    return Translation(
        grammar=found.grammar,
        not_enforced=tuple(found.not_enforced),
        hints=tuple(found.hints),
        may_run_on=found.may_run_on,
        completion=tuple(found.completion.token_ids) if found.HasField("completion") else None,
    )


def spec_from_pb(message: pb.Constraint) -> ConstraintSpec:
    """Raises InvalidStep for a kind or a whitespace that this shard does not know."""
    try:
        return ConstraintSpec(
            _KIND_FROM_PB[message.kind],
            message.text,
            _WHITESPACE_FROM_PB[message.whitespace],
            message.lenient,
        )
    except KeyError as unknown:
        raise InvalidStep(f"a constraint of kind or whitespace {unknown} is not known") from None


def info_to_pb(info: ModelInfo) -> pb.InfoResponse:
    return to_message(info, pb.InfoResponse)


def discovery_to_pb(urls: tuple[str, ...]) -> pb.ServiceDiscoveryResponse:
    return pb.ServiceDiscoveryResponse(urls=urls)


def limits_to_pb(limits: PoolLimits, epoch: int) -> pb.WarmupResponse:
    return to_message(limits, pb.WarmupResponse, epoch=epoch)


def step_to_pb(output: StepOutput, epoch: int) -> pb.StepResponse:
    return pb.StepResponse(
        epoch=epoch,
        generations=[_generation_to_pb(generation) for generation in output.generations],
        batch=_cached_batch_to_pb(output.batch_id, output.request_ids),
        forward_ns=output.forward_ns,
        sample_ns=output.sample_ns,
        total_ns=output.total_ns,
        mask_ns=output.mask_ns,
        num_masked_rows=output.num_masked_rows,
        mask_wait_ns=output.mask_wait_ns,
    )


def prepared_to_pb(compile_ns: int, *, was_cached: bool) -> pb.PrepareConstraintResponse:
    return pb.PrepareConstraintResponse(compile_ns=compile_ns, was_cached=was_cached)


def filtered_to_pb(batch_id: int, kept_ids: tuple[int, ...], epoch: int) -> pb.FilterBatchResponse:
    batch = _cached_batch_to_pb(batch_id if kept_ids else None, kept_ids)
    return pb.FilterBatchResponse(epoch=epoch, batch=batch)


def cleared_to_pb(epoch: int) -> pb.ClearCacheResponse:
    return pb.ClearCacheResponse(epoch=epoch)


def _cached_batch_to_pb(batch_id: int | None, ids: tuple[int, ...]) -> pb.CachedBatch | None:
    return None if batch_id is None else pb.CachedBatch(id=batch_id, request_ids=ids)


def _generation_to_pb(generation: Generation) -> pb.Generation:
    message = pb.Generation(
        request_id=generation.request_id,
        tokens=[_token_to_pb(token) for token in generation.tokens],
        finish_reason=FINISH_REASONS[generation.finish_reason],
        num_forced=generation.num_forced,
        is_late=generation.is_late,
    )
    if generation.constraint_satisfied is not None:
        message.constraint_satisfied = generation.constraint_satisfied
    if generation.error is not None:
        message.error = generation.error
        message.is_refused = generation.is_refused
    if generation.prompt_logprobs:
        message.prompt_logprobs.extend(generation.prompt_logprobs)
    for top_tokens in generation.prompt_top_tokens:
        message.prompt_top_tokens.add(tokens=_top_to_pb(top_tokens))
    return message


def _token_to_pb(token: SampledToken) -> pb.SampledToken:
    if not token.top_tokens:
        return pb.SampledToken(id=token.token_id, logprob=token.logprob)
    return pb.SampledToken(
        id=token.token_id, logprob=token.logprob, top_tokens=_top_to_pb(token.top_tokens)
    )


def _top_to_pb(tokens: tuple[TopToken, ...]) -> list[pb.TopToken]:
    return [pb.TopToken(id=token.token_id, logprob=token.logprob) for token in tokens]
