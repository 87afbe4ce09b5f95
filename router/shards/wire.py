"""Between protobuf and the contract: the only file of this tier that names message fields.

It knows no connection and no rank. Answers are checked here by their form alone (known enum values,
the right epoch); the scheduler checks whether they fit what was scheduled. A malformed answer
raises ShardFailed; a log-probability that is not a number is the error of its row alone.
"""

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Protocol

from constraints.spec import Translation
from proto import generate_pb2 as pb
from proto.contract import (
    Batch,
    FinishReason,
    Generation,
    Image,
    LoadedAdapter,
    ModelInfo,
    NewSequence,
    OutputConstraint,
    PlainRow,
    PoolLimits,
    Prepared,
    SampledToken,
    StepResult,
    TopToken,
)
from proto.convert import (
    CONSTRAINT_KINDS,
    FINISH_REASONS,
    MASK_EFFECTS,
    WHITESPACES,
    from_message,
    to_message,
)
from router.request.errors import ShardFailed
from router.request.request import Constraint

_FINISH_REASONS: dict[int, FinishReason | None] = {
    **{number: reason for reason, number in FINISH_REASONS.items()},
    # The row's error says so; it is no reason of a good end.
    pb.FINISH_REASON_ERROR: None,
}
_MASK_EFFECTS = {number: effect for effect, number in MASK_EFFECTS.items()}
_NANOSECOND = 1e-9
_NO_LOGPROB = "the log-probability of its token is not a number"


class HasEpoch(Protocol):
    """Any answer of a call that touches state."""

    epoch: int


def check_epoch(message: HasEpoch, epoch: int) -> None:
    """Raises ShardFailed for an answer from before a restart, or from another router's time."""
    if message.epoch != epoch:
        raise ShardFailed(f"answered for epoch {message.epoch} in epoch {epoch}")


def prefill_to_pb(batch: Batch, epoch: int, step: int) -> pb.PrefillRequest:
    """The epoch's `step`, which carries new requests, beside those that run."""
    return pb.PrefillRequest(
        epoch=epoch,
        batch=pb.Batch(requests=[_request_to_pb(new) for new in batch.new]),
        updates=[to_message(update, pb.RunningUpdate) for update in batch.updates],
        dropped_ids=batch.dropped_ids,
        step=step,
    )


def decode_to_pb(batch: Batch, epoch: int, step: int) -> pb.DecodeRequest:
    """The epoch's `step`, of those that run."""
    return pb.DecodeRequest(
        epoch=epoch,
        updates=[to_message(update, pb.RunningUpdate) for update in batch.updates],
        dropped_ids=batch.dropped_ids,
        step=step,
    )


def clear_to_pb(epoch: int) -> pb.ClearCacheRequest:
    """Forgets all requests, and begins the epoch."""
    return pb.ClearCacheRequest(epoch=epoch)


def warmup_to_pb(
    epoch: int,
    max_step_tokens: int,
    max_batch_size: int,
    max_total_len: int | None,
    num_blocks: int | None,
    num_states: int | None = None,
) -> pb.WarmupRequest:
    """The largest step that the router will ever ask for; the size of the pool there has been."""
    return pb.WarmupRequest(
        epoch=epoch,
        max_step_tokens=max_step_tokens,
        max_batch_size=max_batch_size,
        max_total_len=max_total_len,
        num_blocks=num_blocks,
        num_states=num_states,
    )


def is_warm(message: pb.ClearCacheResponse) -> bool:
    """False for a shard that was started anew."""
    return message.is_warm


def step_socket(message: pb.ClearCacheResponse) -> str | None:
    """Where the rank takes the epoch's decode steps, but for Decode itself; None: nowhere."""
    return message.step_socket or None


def prepare_to_pb(constraint: Constraint) -> pb.PrepareConstraintRequest:
    """A constraint, to be compiled before the request that has it comes."""
    return pb.PrepareConstraintRequest(
        constraint=_constraint_to_pb(
            OutputConstraint(constraint.spec, constraint.cuts, constraint.translation)
        )
    )


def prepared_from_pb(message: pb.PrepareConstraintResponse) -> Prepared:
    """A constraint that the rank holds now."""
    return Prepared(message.was_cached, message.cache_bytes, message.compile_ns)


def look_ahead_to_pb(image: Image, span_ids: Sequence[int]) -> pb.LookAheadRequest:
    """An image, to be looked at before the request that has it comes."""
    return pb.LookAheadRequest(image=_image_to_pb(image, cached_len=0), span_ids=span_ids)


def looked_s_from_pb(answer: pb.LookAheadResponse) -> float:
    """Seconds that a rank looked at an image; 0: it knew it, or does so in the step."""
    return answer.look_ns / 1e9


def load_adapter_to_pb(epoch: int, adapter_id: int, path: str) -> pb.LoadAdapterRequest:
    """A LoRA adapter, to be held beside the model."""
    return pb.LoadAdapterRequest(epoch=epoch, adapter_id=adapter_id, path=path)


def unload_adapter_to_pb(epoch: int, adapter_id: int | None) -> pb.UnloadAdapterRequest:
    """A LoRA adapter that no request is computed with; None: all."""
    return pb.UnloadAdapterRequest(epoch=epoch, adapter_id=adapter_id or 0)


def loaded_from_pb(message: pb.LoadAdapterResponse) -> LoadedAdapter:
    """What one rank holds of an adapter."""
    return LoadedAdapter(message.rank, message.num_bytes)


def step_from_pb(message: pb.StepResponse, step_id: int) -> StepResult:
    """One rank's answer; only rank 0 brings generations.

    Raises ShardFailed when a generation is malformed.
    """
    plain = _plain_from_pb(message)
    others = [_generation_from_pb(made) for made in message.generations]
    if isnan(sum(message.plain_logprobs)):
        others += [
            Generation(request_id, error=_NO_LOGPROB)
            for request_id, _, logprob in plain
            if isnan(logprob)
        ]
        plain = [row for row in plain if not isnan(row[2])]
    return StepResult(
        step_id=step_id,
        others=tuple(others),
        remaining_ids=tuple(message.request_ids),
        forward_s=message.forward_ns * _NANOSECOND,
        sample_s=message.sample_ns * _NANOSECOND,
        total_s=message.total_ns * _NANOSECOND,
        mask_s=message.mask_ns * _NANOSECOND,
        mask_wait_s=message.mask_wait_ns * _NANOSECOND,
        num_masked_rows=message.num_masked_rows,
        plain=plain,
    )


def urls_from_pb(message: pb.ServiceDiscoveryResponse) -> tuple[str, ...]:
    """The addresses of all ranks. Raises ShardFailed when there is none."""
    urls = tuple(message.urls)
    if not urls or not all(urls):
        raise ShardFailed(f"ServiceDiscovery answered {list(urls)}: not one address for each rank")
    return urls


def info_from_pb(message: pb.InfoResponse) -> ModelInfo:
    """Raises ShardFailed for a model without tokens or blocks without slots."""
    if message.vocab_size < 1 or message.block_size < 1 or message.world_size < 1:
        raise ShardFailed(
            f"Info answered vocab_size {message.vocab_size}, block_size {message.block_size}, "
            f"world_size {message.world_size}: each must be at least 1"
        )
    return from_message(message, ModelInfo)


def limits_from_pb(message: pb.WarmupResponse) -> PoolLimits:
    """Raises ShardFailed for a pool that can hold no sequence."""
    if message.num_blocks < 1 or message.block_size < 1 or message.max_total_len < 2:
        raise ShardFailed(
            f"Warmup answered num_blocks {message.num_blocks}, block_size {message.block_size}, "
            f"max_total_len {message.max_total_len}: no sequence fits"
        )
    return from_message(message, PoolLimits)


def _request_to_pb(new: NewSequence) -> pb.Request:
    return pb.Request(
        id=new.request_id,
        token_ids=new.token_ids,
        prompt_len=new.prompt_len,
        cached_len=new.cached_len,
        chunk_len=new.chunk_len,
        block_ids=new.block_ids,
        sampling=to_message(new.sampling, pb.SamplingParameters),
        stopping=to_message(new.stop, pb.StoppingParameters),
        logprobs=to_message(new.logprobs, pb.LogprobParameters),
        constraint=None if new.constraint is None else _constraint_to_pb(new.constraint),
        pause_len=new.pause_len,
        state_ids=new.state_ids,
        from_state=new.from_state,
        kept_states=[
            pb.KeptState(position=kept.position, state_id=kept.state_id) for kept in new.kept_states
        ],
        adapter_id=new.adapter_id,
        max_drafts=new.max_drafts,
        images=[_image_to_pb(image, new.cached_len) for image in new.images],
    )


def _image_to_pb(image: Image, cached_len: int) -> pb.Image:
    """One that is cached is not looked at again; its layout says where what follows it stands."""
    is_cached = image.stop <= cached_len
    return pb.Image(
        digest=image.digest,
        start=image.start,
        span_len=image.span_len,
        tensors={
            name: to_message(tensor, pb.ImageTensor)
            for name, tensor in image.tensors.items()
            if not (is_cached and tensor.is_float)
        },
    )


def _constraint_to_pb(constraint: OutputConstraint) -> pb.Constraint:
    spec = constraint.spec
    found = constraint.translation
    return pb.Constraint(
        kind=CONSTRAINT_KINDS[spec.kind],
        text=spec.text,
        whitespace=WHITESPACES[spec.whitespace],
        lenient=spec.lenient,
        any_key_order=spec.any_key_order,
        strict=spec.strict,
        cuts=constraint.cuts,
        translation=None if found is None else _translation_to_pb(found),
        thought=(
            None if constraint.thought is None else to_message(constraint.thought, pb.Thought)
        ),
    )


def _translation_to_pb(found: Translation) -> pb.Translation:
    completion = found.completion
    return pb.Translation(
        grammar=found.grammar,
        not_enforced=found.not_enforced,
        hints=found.hints,
        completion=None if completion is None else pb.Completion(token_ids=completion),
        watch=found.watch,
    )


def _plain_from_pb(message: pb.StepResponse) -> list[PlainRow]:
    columns = (message.plain_request_ids, message.plain_token_ids, message.plain_logprobs)
    try:
        return list(zip(*columns, strict=True))
    except ValueError as error:
        raise ShardFailed(f"its columns of plain generations differ in length: {error}") from error


def _generation_from_pb(message: pb.Generation) -> Generation:
    code = message.finish_reason
    tokens = tuple([_token_from_pb(token) for token in message.tokens])
    if not message.error and any(isnan(token.logprob) for token in tokens):
        return Generation(message.request_id, error=_NO_LOGPROB)
    if code == pb.FINISH_REASON_NONE and not message.prompt_logprobs and not message.error:
        return Generation(
            message.request_id,
            tokens,
            num_forced=message.num_forced,
            is_late=message.is_late,
            num_drafts=message.num_drafts,
            num_accepted=message.num_accepted,
        )
    if code not in _FINISH_REASONS:
        raise ShardFailed(f"request {message.request_id}: unknown finish reason {code}")
    if bool(message.error) != (code == pb.FINISH_REASON_ERROR):
        raise ShardFailed(
            f"request {message.request_id}: finish reason {pb.FinishReason.Name(code)} with the "
            f"error {message.error!r}; one demands the other"
        )
    prompt_logprobs = tuple(message.prompt_logprobs)
    if not message.error and any(map(isnan, prompt_logprobs)):
        return Generation(
            message.request_id, error="a log-probability of its prompt is not a number"
        )
    return Generation(
        request_id=message.request_id,
        tokens=tokens if not message.error else (),
        finish_reason=_FINISH_REASONS[code],
        error=message.error or None,
        prompt_logprobs=prompt_logprobs,
        prompt_top_tokens=tuple(
            [_top_tokens_from_pb(scored.tokens) for scored in message.prompt_top_tokens]
        ),
        num_forced=message.num_forced,
        constraint_satisfied=(
            message.constraint_satisfied if message.HasField("constraint_satisfied") else None
        ),
        is_refused=message.is_refused,
        is_late=message.is_late,
        num_drafts=message.num_drafts,
        num_accepted=message.num_accepted,
    )


def _token_from_pb(message: pb.SampledToken) -> SampledToken:
    logprob = message.logprob
    top_tokens = message.top_tokens
    if not top_tokens:
        return SampledToken(message.id, logprob)
    effect = _MASK_EFFECTS.get(message.mask_effect)
    return SampledToken(message.id, logprob, _top_tokens_from_pb(top_tokens), effect)


def _top_tokens_from_pb(messages: Iterable[pb.TopToken]) -> tuple[TopToken, ...]:
    return tuple([TopToken(top.id, top.logprob) for top in messages])
