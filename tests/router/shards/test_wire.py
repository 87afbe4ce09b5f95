"""The router's half of the wire: field by field out, and only well-formed answers in."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from constraints.spec import ConstraintSpec, Kind, ThoughtRule, Translation, Whitespace
from proto import generate_pb2 as pb
from proto.contract import (
    Batch,
    FinishReason,
    Generation,
    Image,
    ImageTensor,
    KeptState,
    LogprobParams,
    MaskEffect,
    NewSequence,
    Prepared,
    RunningUpdate,
    SampledToken,
    SamplingParams,
    StopParams,
    TopToken,
)
from proto.convert import FINISH_REASONS
from router.request.errors import ShardFailed
from router.request.request import Constraint, GenerateRequest
from router.shards import wire

PLAIN = GenerateRequest((5, 6, 7), "abc", SamplingParams(), StopParams(max_new_tokens=4))
# What a shard of a later version might say.
UNKNOWN = pb.FinishReason.ValueType(17)


def batch_of(request: GenerateRequest, updates: tuple[RunningUpdate, ...] = ()) -> Batch:
    new = NewSequence(
        request_id=9,
        token_ids=(*request.prompt_ids, 8),
        prompt_len=len(request.prompt_ids),
        cached_len=len(request.prompt_ids) - 1,
        chunk_len=2,
        block_ids=(3, 1),
        sampling=request.sampling,
        stop=request.stop,
        logprobs=request.logprobs,
        constraint=request.shard_constraint,
        pause_len=request.pause_len,
    )
    return Batch(1, (new,), updates, (4,), (), 3, 1)


def answer(*generations: pb.Generation) -> pb.StepResponse:
    return pb.StepResponse(epoch=1, generations=generations)


def token(token_id: int = 5, logprob: float = -0.5) -> pb.SampledToken:
    return pb.SampledToken(id=token_id, logprob=logprob)


def test_a_plain_request_switches_every_processor_off() -> None:
    sent = wire.prefill_to_pb(batch_of(PLAIN), 3, 1).batch.requests[0]
    assert (sent.id, list(sent.token_ids), sent.prompt_len) == (9, [5, 6, 7, 8], 3)
    assert (sent.cached_len, sent.chunk_len, list(sent.block_ids)) == (2, 2, [3, 1])
    sampling = sent.sampling
    listed = {field.name for field, _ in sampling.ListFields()}
    assert not listed & {"top_k", "top_p", "typical_p", "min_p"}
    assert (sampling.temperature, sampling.repetition_penalty) == (1, 1)
    assert not sampling.watermark
    assert not sent.HasField("constraint")


def test_an_image_that_is_cached_travels_without_what_it_shows() -> None:
    pixels = ImageTensor("bfloat16", (1, 2), b"\1\2\3\4")
    grid = ImageTensor("int64", (1,), bytes(8))
    images = tuple(
        Image(bytes([number]) * 16, number, 1, {"pixel_values": pixels, "grid": grid})
        for number in (0, 1, 2)
    )
    batch = batch_of(PLAIN)
    batch = replace(batch, new=(replace(batch.new[0], images=images),))
    sent = wire.prefill_to_pb(batch, 3, 1).batch.requests[0].images
    assert [(image.start, image.span_len, sorted(image.tensors)) for image in sent] == [
        (0, 1, ["grid"]),
        (1, 1, ["grid"]),
        (2, 1, ["grid", "pixel_values"]),
    ]
    assert sent[2].digest == bytes([2]) * 16
    arrived = sent[2].tensors["pixel_values"]
    assert (arrived.dtype, list(arrived.shape), arrived.data) == ("bfloat16", [1, 2], pixels.data)


def test_every_parameter_arrives_in_its_field() -> None:
    sampling = SamplingParams(
        do_sample=True,
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        typical_p=0.75,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias=MappingProxyType({3: -100.0}),
        seed=2**64 - 1,
        watermark=True,
    )
    stop = StopParams(
        40,
        min_new_tokens=2,
        ignore_eos=True,
        stop_token_ids=(1, 2),
        stop_strings=("b", "c"),
        keep_stop_string=True,
    )
    logprobs = LogprobParams(num_top_tokens=3, raw=True, prompt=True, prompt_from=1)
    spec = ConstraintSpec(
        Kind.REGEX, "a+", Whitespace.SPACED, lenient=True, any_key_order=True, strict=True
    )
    constraint = Constraint(spec, cuts=True, dropped_phrases=("d",))
    request = GenerateRequest(
        (5, 6),
        "ab",
        sampling,
        stop,
        logprobs,
        constraint,
        output_ids=(7, 8, 9),
        pause_after=4,
        thought=ThoughtRule("<think>", "</think>", is_begun=True, max_len=0),
    )
    sent = wire.prefill_to_pb(batch_of(request), 3, 1).batch.requests[0]
    assert sent.sampling == pb.SamplingParameters(
        do_sample=True,
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        typical_p=0.75,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={3: -100.0},
        seed=2**64 - 1,
        watermark=True,
    )
    assert sent.stopping == pb.StoppingParameters(
        max_new_tokens=40,
        min_new_tokens=2,
        ignore_eos=True,
        stop_token_ids=[1, 2],
        stop_strings=["b", "c"],
        keep_stop_string=True,
    )
    assert sent.pause_len == 7
    assert sent.logprobs == pb.LogprobParameters(
        num_top_tokens=3, raw=True, prompt=True, prompt_from=1
    )
    assert sent.constraint == pb.Constraint(
        kind=pb.CONSTRAINT_KIND_REGEX,
        text="a+",
        whitespace=pb.CONSTRAINT_WHITESPACE_SPACED,
        lenient=True,
        any_key_order=True,
        strict=True,
        cuts=True,
        thought=pb.Thought(opener="<think>", closer="</think>", is_begun=True, max_len=0),
    )
    sent.constraint.ClearField("thought")
    assert wire.prepare_to_pb(constraint).constraint == sent.constraint


@pytest.mark.parametrize("completion", [None, (), (4, 5)])
@pytest.mark.parametrize("is_quick", [True, False])
def test_a_translation_goes_with_the_call_that_compiles_it(
    completion: tuple[int, ...] | None, is_quick: bool
) -> None:
    found = Translation("start: /a/", ("/a",), (b"\xff",), completion)
    constraint = Constraint(ConstraintSpec(Kind.REGEX, "a"), is_quick=is_quick, translation=found)
    request = GenerateRequest((1,), "", SamplingParams(), StopParams(1), constraint=constraint)
    expected = pb.Translation(
        grammar="start: /a/",
        not_enforced=["/a"],
        hints=[b"\xff"],
        completion=None if completion is None else pb.Completion(token_ids=completion),
    )
    sent = wire.prefill_to_pb(batch_of(request), 1, 1).batch.requests[0].constraint
    assert sent.HasField("translation") == is_quick
    assert not is_quick or sent.translation == expected
    assert wire.prepare_to_pb(constraint).constraint.translation == expected


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("whitespace", Whitespace)
def test_every_constraint_language_has_its_number(kind: Kind, whitespace: Whitespace) -> None:
    constraint = Constraint(ConstraintSpec(kind, "x", whitespace))
    request = GenerateRequest((1,), "", SamplingParams(), StopParams(1), constraint=constraint)
    sent = wire.prefill_to_pb(batch_of(request), 1, 1).batch.requests[0].constraint
    assert pb.ConstraintKind.Name(sent.kind) == f"CONSTRAINT_KIND_{kind.name}"
    assert (
        pb.ConstraintWhitespace.Name(sent.whitespace) == f"CONSTRAINT_WHITESPACE_{whitespace.name}"
    )


def test_absence_stays_absent() -> None:
    joined = wire.prefill_to_pb(
        batch_of(PLAIN, (RunningUpdate(4), RunningUpdate(5, (6,), 0))), 3, 1
    )
    assert [update.HasField("chunk_len") for update in joined.updates] == [False, True]
    assert (list(joined.updates[1].block_ids), joined.updates[1].chunk_len) == ([6], 0)
    assert not wire.warmup_to_pb(1, 2, 3, None, None).HasField("max_total_len")


def test_a_step_comes_back_in_plain_numbers() -> None:
    message = answer(pb.Generation(request_id=9, tokens=[token()]))
    message.request_ids.extend([9, 4])
    message.forward_ns = 2_000_000
    message.sample_ns = 500_000
    message.total_ns = 3_000_000
    result = wire.step_from_pb(message, step_id=7)
    assert result.step_id == 7
    assert result.generations == (Generation(9, (SampledToken(5, -0.5),)),)
    assert result.remaining_ids == (9, 4)
    assert result.total_s == pytest.approx(0.003)


def test_a_run_of_forced_tokens_and_its_masks_come_back() -> None:
    message = answer(
        pb.Generation(request_id=9, tokens=[token(5), token(6)], num_forced=1),
        pb.Generation(
            request_id=8,
            finish_reason=pb.FINISH_REASON_CONSTRAINT_COMPLETE,
            constraint_satisfied=False,
        ),
    )
    message.mask_ns = 3_000_000
    message.mask_wait_ns = 1_000_000
    message.num_masked_rows = 2
    result = wire.step_from_pb(message, step_id=7)
    assert result.generations == (
        Generation(9, (SampledToken(5, -0.5), SampledToken(6, -0.5)), num_forced=1),
        Generation(8, finish_reason=FinishReason.CONSTRAINT_COMPLETE, constraint_satisfied=False),
    )
    assert (result.mask_s, result.mask_wait_s) == pytest.approx((0.003, 0.001))
    assert result.num_masked_rows == 2


@pytest.mark.parametrize("reason", [None, FinishReason.LENGTH])
def test_accepted_drafts_come_back(reason: FinishReason | None) -> None:
    message = answer(
        pb.Generation(
            request_id=9,
            tokens=[token(5), token(6)],
            num_drafts=3,
            num_accepted=1,
            finish_reason=FINISH_REASONS[reason],
        )
    )
    tokens = (SampledToken(5, -0.5), SampledToken(6, -0.5))
    assert wire.step_from_pb(message, step_id=7).generations == (
        Generation(9, tokens, reason, num_drafts=3, num_accepted=1),
    )


@pytest.mark.parametrize("prompt_logprobs", [(), (-0.5, -1.0)])
def test_a_late_row_comes_back_with_the_scores_of_its_prompt(
    prompt_logprobs: tuple[float, ...],
) -> None:
    message = pb.Generation(request_id=9, prompt_logprobs=prompt_logprobs, is_late=True)
    (made,) = wire.step_from_pb(answer(message), 1).generations
    assert made == Generation(9, prompt_logprobs=prompt_logprobs, is_late=True)


@pytest.mark.parametrize("was_cached", [True, False])
def test_a_prepared_constraint_was_compiled_before_or_not(was_cached: bool) -> None:
    message = pb.PrepareConstraintResponse(
        compile_ns=2_000_000, was_cached=was_cached, cache_bytes=3 << 32
    )
    assert wire.prepared_from_pb(message) == Prepared(was_cached, 3 << 32, 2_000_000)


def test_a_step_that_ends_everything_leaves_nothing() -> None:
    result = wire.step_from_pb(
        answer(
            pb.Generation(request_id=9, tokens=[token()], finish_reason=pb.FINISH_REASON_LENGTH)
        ),
        1,
    )
    assert result.remaining_ids == ()
    assert result.generations[0].finish_reason is FinishReason.LENGTH


def test_top_tokens_and_prompt_scores_are_kept_in_order() -> None:
    top = [pb.TopToken(id=5, logprob=-0.5), pb.TopToken(id=6, logprob=-1.0)]
    effect = pb.MASK_EFFECT_STEERED
    message = pb.Generation(
        request_id=9,
        tokens=[pb.SampledToken(id=5, logprob=-0.5, top_tokens=top, mask_effect=effect)],
        prompt_logprobs=[-0.25, -0.75],
        prompt_top_tokens=[pb.TopTokens(tokens=top), pb.TopTokens()],
    )
    (made,) = wire.step_from_pb(answer(message), 1).generations
    read = (TopToken(5, -0.5), TopToken(6, -1.0))
    assert made.tokens[0].top_tokens == read
    assert made.tokens[0].mask_effect is MaskEffect.STEERED
    assert made.prompt_logprobs == (-0.25, -0.75)
    assert made.prompt_top_tokens == (read, ())


def test_a_failed_row_brings_its_reason_and_no_token() -> None:
    message = pb.Generation(
        request_id=9, tokens=[token()], finish_reason=pb.FINISH_REASON_ERROR, error="NaN logits"
    )
    (made,) = wire.step_from_pb(answer(message), 1).generations
    assert made == Generation(9, error="NaN logits")
    message.is_refused = True
    (made,) = wire.step_from_pb(answer(message), 1).generations
    assert made == Generation(9, error="NaN logits", is_refused=True)


def test_a_pause_is_a_reason_to_end() -> None:
    message = pb.Generation(request_id=9, tokens=[token()], finish_reason=pb.FINISH_REASON_PAUSED)
    (made,) = wire.step_from_pb(answer(message), 1).generations
    assert made == Generation(9, (SampledToken(5, -0.5),), FinishReason.PAUSED)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.Generation(request_id=9, finish_reason=UNKNOWN), "unknown finish reason 17"),
        (pb.Generation(request_id=9, error="x"), "one demands the other"),
        (
            pb.Generation(request_id=9, finish_reason=pb.FINISH_REASON_ERROR),
            "one demands the other",
        ),
    ],
)
def test_a_malformed_generation_is_refused(message: pb.Generation, words: str) -> None:
    with pytest.raises(ShardFailed, match=words):
        wire.step_from_pb(answer(message), 1)


@pytest.mark.parametrize(
    "message",
    [
        pb.Generation(request_id=9, tokens=[token(logprob=float("nan"))]),
        pb.Generation(request_id=9, prompt_logprobs=[-1.0, float("nan")]),
    ],
)
def test_what_is_not_a_number_fails_its_row_alone(message: pb.Generation) -> None:
    other = pb.Generation(request_id=8, tokens=[token()])
    failed, kept = wire.step_from_pb(answer(message, other), 1).generations
    assert failed.error is not None
    assert "is not a number" in failed.error
    assert (failed.tokens, failed.prompt_logprobs) == ((), ())
    assert kept == Generation(8, (SampledToken(5, -0.5),))


def test_plain_rows_come_in_columns_of_one_length() -> None:
    columns = pb.StepResponse(
        epoch=1,
        plain_request_ids=[9, 8],
        plain_token_ids=[5, 6],
        plain_logprobs=[-0.5, float("nan")],
    )
    kept, failed = wire.step_from_pb(columns, 1).generations
    assert kept == Generation(9, (SampledToken(5, -0.5),))
    assert failed.error is not None
    assert (failed.request_id, failed.tokens) == (8, ())
    columns.plain_logprobs.append(-1.0)
    with pytest.raises(ShardFailed, match="differ in length"):
        wire.step_from_pb(columns, 1)


def test_an_unknown_enum_value_survives_the_encoding_and_is_refused() -> None:
    message = answer(pb.Generation(request_id=9, finish_reason=UNKNOWN))
    again = pb.StepResponse.FromString(message.SerializeToString())
    with pytest.raises(ShardFailed, match="unknown finish reason 17"):
        wire.step_from_pb(again, 1)


def test_the_slots_of_a_requests_states_are_sent() -> None:
    new = batch_of(PLAIN).new[0]
    sent = wire.prefill_to_pb(replace(batch_of(PLAIN), new=(new,)), 3, 1).batch.requests[0]
    assert (list(sent.state_ids), sent.HasField("from_state")) == ([], False)
    new = replace(new, state_ids=(4, 0), from_state=0, kept_states=(KeptState(3, 7),))
    sent = wire.prefill_to_pb(replace(batch_of(PLAIN), new=(new,)), 3, 1).batch.requests[0]
    assert (list(sent.state_ids), sent.HasField("from_state"), sent.from_state) == ([4, 0], True, 0)
    assert list(sent.kept_states) == [pb.KeptState(position=3, state_id=7)]


def test_what_a_shard_says_of_states_arrives() -> None:
    message = pb.InfoResponse(
        vocab_size=9, block_size=4, world_size=1, state_bytes=1 << 40, keeps_states=True
    )
    info = wire.info_from_pb(message)
    assert (info.state_bytes, info.keeps_states) == (1 << 40, True)
    answer = pb.WarmupResponse(num_blocks=8, block_size=4, max_total_len=10, num_states=6)
    assert wire.limits_from_pb(answer).num_states == 6
    assert wire.warmup_to_pb(1, 8, 4, None, 8, 6).num_states == 6
    assert not wire.warmup_to_pb(1, 8, 4, None, None).HasField("num_states")


def test_a_pool_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ShardFailed, match="no sequence fits"):
        wire.limits_from_pb(pb.WarmupResponse(num_blocks=0, block_size=16, max_total_len=10))
    with pytest.raises(ShardFailed, match="vocab_size 0"):
        wire.info_from_pb(pb.InfoResponse(block_size=16, world_size=1))
    with pytest.raises(ShardFailed, match="one address for each rank"):
        wire.urls_from_pb(pb.ServiceDiscoveryResponse())


def test_the_sampling_that_a_model_recommends_crosses_the_wire() -> None:
    message = pb.InfoResponse(
        vocab_size=9, block_size=4, world_size=1, sampling_defaults={"top_p": 0.95, "top_k": 20}
    )
    again = pb.InfoResponse.FromString(message.SerializeToString())
    assert wire.info_from_pb(again).sampling_defaults == {"top_p": 0.95, "top_k": 20.0}


def test_a_model_without_a_window_has_none() -> None:
    message = pb.InfoResponse(vocab_size=9, block_size=4, world_size=1, eos_token_ids=[1, 2])
    assert wire.info_from_pb(message).window_len is None
    message.window_len = 512
    assert wire.info_from_pb(message).window_len == 512
    assert wire.info_from_pb(message).eos_token_ids == (1, 2)


def test_a_step_says_its_place_and_what_left_before_it() -> None:
    batch = Batch(7, (), (), (4,), (2, 3), 1, 1)
    sent = wire.decode_to_pb(batch, 3, 5)
    assert (sent.epoch, sent.step, list(sent.dropped_ids)) == (3, 5, [2, 3])


def test_an_adapter_is_sent_by_its_number_and_none_is_absent() -> None:
    new = batch_of(PLAIN).new[0]
    for adapter_id in (None, 7):
        one = replace(new, adapter_id=adapter_id)
        sent = wire.prefill_to_pb(replace(batch_of(PLAIN), new=(one,)), 3, 1).batch.requests[0]
        assert sent.HasField("adapter_id") == (adapter_id is not None)
        assert sent.adapter_id == (adapter_id or 0)


def test_no_number_stands_for_all_adapters() -> None:
    assert wire.unload_adapter_to_pb(3, 7) == pb.UnloadAdapterRequest(epoch=3, adapter_id=7)
    assert wire.unload_adapter_to_pb(3, None) == pb.UnloadAdapterRequest(epoch=3)
