"""Between protobuf and the shard's words: the only file of this tier that names message fields."""

from dataclasses import dataclass

from constraints.spec import ConstraintSpec, Kind, StopRule, Whitespace
from constraints.translation import Translation
from model_server.engine.request import (
    Constraint,
    FinishReason,
    Generation,
    Growth,
    LogprobParams,
    NewSequence,
    PoolLimits,
    SampledToken,
    SamplingParams,
    StepOutput,
    StopParams,
    TopToken,
)
from model_server.errors import InvalidStep
from proto import generate_pb2 as pb

_FINISH_TO_PB = {
    None: pb.FINISH_REASON_NONE,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.EOS: pb.FINISH_REASON_EOS,
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.CONSTRAINT_COMPLETE: pb.FINISH_REASON_CONSTRAINT_COMPLETE,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
    FinishReason.PAUSED: pb.FINISH_REASON_PAUSED,
}
_KIND_FROM_PB = {
    pb.CONSTRAINT_KIND_JSON_SCHEMA: Kind.JSON_SCHEMA,
    pb.CONSTRAINT_KIND_REGEX: Kind.REGEX,
    pb.CONSTRAINT_KIND_LARK: Kind.LARK,
    pb.CONSTRAINT_KIND_CHOICE: Kind.CHOICE,
    pb.CONSTRAINT_KIND_WHERE: Kind.WHERE,
    pb.CONSTRAINT_KIND_GBNF: Kind.GBNF,
}
_WHITESPACE_FROM_PB = {
    pb.CONSTRAINT_WHITESPACE_FLEXIBLE: Whitespace.FLEXIBLE,
    pb.CONSTRAINT_WHITESPACE_COMPACT: Whitespace.COMPACT,
    pb.CONSTRAINT_WHITESPACE_SPACED: Whitespace.SPACED,
}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What Info answers."""

    model_id: str
    model_type: str
    dtype: str
    device_type: str
    attention_backend: str
    block_size: int
    vocab_size: int
    max_position_embeddings: int
    window_len: int | None
    eos_token_ids: tuple[int, ...]
    world_size: int
    rank: int


@dataclass(frozen=True, slots=True)
class PrefillCall:
    """The arguments of Runner.prefill."""

    batch_id: int
    new: tuple[NewSequence, ...]
    cached_batch_id: int | None
    growth: tuple[Growth, ...]


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """The arguments of Runner.decode."""

    batch_ids: tuple[int, ...]
    growth: tuple[Growth, ...]


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
        growth=tuple(_growth_from_pb(growth) for growth in message.growth),
    )


def decode_from_pb(message: pb.DecodeRequest) -> DecodeCall:
    """Raises InvalidStep when no batch is named."""
    if not message.batch_ids:
        raise InvalidStep("batch_ids is empty: Decode needs at least one batch")
    return DecodeCall(
        batch_ids=tuple(message.batch_ids),
        growth=tuple(_growth_from_pb(growth) for growth in message.growth),
    )


def _growth_from_pb(message: pb.Growth) -> Growth:
    return Growth(
        request_id=message.request_id,
        block_ids=tuple(message.block_ids),
        chunk_len=message.chunk_len if message.HasField("chunk_len") else None,
    )


def _sequence_from_pb(message: pb.Request) -> NewSequence:
    return NewSequence(
        request_id=message.id,
        token_ids=tuple(message.token_ids),
        prompt_len=message.prompt_len,
        cached_len=message.cached_len,
        chunk_len=message.chunk_len,
        block_ids=tuple(message.block_ids),
        sampling=_sampling_from_pb(message.sampling),
        stop=StopParams(
            max_new_tokens=message.stopping.max_new_tokens,
            min_new_tokens=message.stopping.min_new_tokens,
            ignore_eos=message.stopping.ignore_eos,
            stop_token_ids=tuple(message.stopping.stop_token_ids),
            pause_len=(
                message.stopping.pause_len if message.stopping.HasField("pause_len") else None
            ),
        ),
        logprobs=LogprobParams(
            num_top_tokens=message.logprobs.num_top_tokens,
            raw=message.logprobs.raw,
            prompt=message.logprobs.prompt,
            prompt_from=message.logprobs.prompt_from,
        ),
        constraint=_constraint_from_pb(message),
    )


def _constraint_from_pb(message: pb.Request) -> Constraint | None:
    if not message.HasField("constraint"):
        return None
    asked = message.constraint
    if asked.kind == pb.CONSTRAINT_KIND_NONE:
        return None
    return Constraint(
        spec=spec_from_pb(asked),
        stops=StopRule(tuple(asked.stop_strings), asked.keeps_stop_string),
        cuts=asked.cuts,
        translation=translation_from_pb(asked),
    )


def translation_from_pb(message: pb.Constraint) -> Translation | None:
    """What the router has found of a constraint, if it says so."""
    if not message.HasField("translation"):
        return None
    told = message.translation
    return Translation(
        grammar=told.grammar,
        not_enforced=tuple(told.not_enforced),
        hints=tuple(told.hints),
        may_run_on=told.may_run_on,
        completion=tuple(told.completion.token_ids) if told.HasField("completion") else None,
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


def _sampling_from_pb(message: pb.SamplingParameters) -> SamplingParams:
    return SamplingParams(
        do_sample=message.do_sample,
        temperature=message.temperature,
        top_k=message.top_k or None,
        top_p=message.top_p if message.top_p < 1.0 else None,
        typical_p=message.typical_p if message.typical_p < 1.0 else None,
        min_p=message.min_p or None,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=dict(message.logit_bias),
        seed=message.seed,
        watermark=message.watermark,
    )


def info_to_pb(info: ModelInfo) -> pb.InfoResponse:
    return pb.InfoResponse(
        model_id=info.model_id,
        model_type=info.model_type,
        dtype=info.dtype,
        device_type=info.device_type,
        attention_backend=info.attention_backend,
        block_size=info.block_size,
        vocab_size=info.vocab_size,
        max_position_embeddings=info.max_position_embeddings,
        window_len=info.window_len,
        eos_token_ids=info.eos_token_ids,
        world_size=info.world_size,
        rank=info.rank,
    )


def discovery_to_pb(urls: tuple[str, ...]) -> pb.ServiceDiscoveryResponse:
    return pb.ServiceDiscoveryResponse(urls=urls)


def limits_to_pb(limits: PoolLimits, epoch: int) -> pb.WarmupResponse:
    return pb.WarmupResponse(
        epoch=epoch,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        max_total_len=limits.max_total_len,
    )


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
        finish_reason=_FINISH_TO_PB[generation.finish_reason],
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
