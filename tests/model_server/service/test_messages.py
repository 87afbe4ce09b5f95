"""Messages to the classes of the contract and back, as the shard reads and writes them."""

import pytest

from constraints.spec import ConstraintSpec, Kind, Whitespace
from constraints.translation import Translation
from model_server.errors import InvalidStep
from model_server.service import service
from model_server.step import StepOutput
from proto import generate_pb2 as pb
from proto.contract import (
    FinishReason,
    Generation,
    LogprobParams,
    MaskEffect,
    OutputConstraint,
    RunningUpdate,
    SampledToken,
    TopToken,
)


def request(**changes: object) -> pb.Request:
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


arrived = service.sequence_from_pb


def test_absent_parameters_are_none() -> None:
    sequence = arrived(request())
    assert sequence.token_ids == (5, 6, 7)
    sampling = sequence.sampling
    assert (sampling.top_k, sampling.top_p, sampling.typical_p, sampling.min_p) == (None,) * 4


def test_what_is_known_of_a_constraint_arrives() -> None:
    message = request(constraint=pb.Constraint(kind=pb.CONSTRAINT_KIND_REGEX, text="a"))
    sequence = arrived(message)
    assert sequence.constraint is not None
    assert sequence.constraint.translation is None
    translation = message.constraint.translation
    translation.grammar = "start: /a/"
    translation.not_enforced.append("/a")
    translation.hints.append(b"\xff")
    translation.may_run_on = True
    for token_ids in (None, (), (4, 5)):
        if token_ids is not None:
            translation.completion.token_ids[:] = token_ids
            translation.completion.SetInParent()
        constraint = arrived(message).constraint
        assert constraint is not None
        assert constraint.translation == Translation(
            "start: /a/", ("/a",), (b"\xff",), may_run_on=True, completion=token_ids
        )


def test_a_pause_and_where_scores_begin_arrive() -> None:
    message = request(
        pause_len=2,
        logprobs=pb.LogprobParameters(prompt=True, prompt_from=1),
    )
    sequence = arrived(message)
    assert sequence.pause_len == 2
    assert sequence.logprobs == LogprobParams(prompt=True, prompt_from=1)
    assert arrived(request()).pause_len is None


def test_a_watermark_is_made_on_request() -> None:
    asking = arrived(request(sampling=pb.SamplingParameters(watermark=True)))
    assert asking.sampling.watermark
    assert not arrived(request()).sampling.watermark


def test_a_constraint_comes_with_its_stop_rule() -> None:
    asked = pb.Constraint(
        kind=pb.CONSTRAINT_KIND_JSON_SCHEMA,
        text="{}",
        whitespace=pb.CONSTRAINT_WHITESPACE_COMPACT,
        lenient=True,
        cuts=True,
    )
    stopping = pb.StoppingParameters(stop_strings=["\n\n", "END"], keep_stop_string=True)
    sequence = arrived(request(constraint=asked, stopping=stopping))
    assert (sequence.stop.stop_strings, sequence.stop.keep_stop_string) == (("\n\n", "END"), True)
    assert sequence.constraint == OutputConstraint(
        ConstraintSpec(Kind.JSON_SCHEMA, "{}", Whitespace.COMPACT, lenient=True),
        cuts=True,
    )


@pytest.mark.parametrize("nothing", [{}, {"constraint": pb.Constraint()}])
def test_no_constraint_is_none(nothing: dict[str, object]) -> None:
    assert arrived(request(**nothing)).constraint is None


@pytest.mark.parametrize("kind", [k for k in pb.ConstraintKind.values() if k])
def test_every_kind_of_the_wire_is_known(kind: pb.ConstraintKind.ValueType) -> None:
    name = service.spec_from_pb(pb.Constraint(kind=kind)).kind.name
    assert pb.ConstraintKind.Name(kind) == f"CONSTRAINT_KIND_{name}"


def test_an_update_of_zero_tokens_is_not_the_default() -> None:
    message = pb.DecodeRequest(
        updates=[
            pb.RunningUpdate(request_id=1, chunk_len=0),
            pb.RunningUpdate(request_id=2, block_ids=[4]),
        ],
    )
    updates = (RunningUpdate(1, (), 0), RunningUpdate(2, (4,), None))
    assert service.updates_from_pb(message) == updates


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param(request(chunk_len=9), "chunk_len 9 exceeds its 3 tokens", id="chunk"),
        pytest.param(request(prompt_len=8), "prompt_len 8 is not in 1..3", id="prompt"),
        pytest.param(pb.Request(id=3), "prompt_len 0", id="empty"),
        pytest.param(
            request(constraint=pb.Constraint(kind=99, text="a+")),  # type: ignore[arg-type]
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
        generations=(
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
    message = service.step_to_pb(output, epoch=9)
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


def test_a_late_row_is_answered_with_the_scores_of_its_prompt() -> None:
    late = Generation(1, prompt_logprobs=(-1.0,), is_late=True)
    output = StepOutput(
        generations=(late,),
        request_ids=(1,),
        forward_ns=1,
        sample_ns=2,
        total_ns=3,
    )
    (generation,) = service.step_to_pb(output, epoch=9).generations
    assert (generation.is_late, list(generation.prompt_logprobs), list(generation.tokens)) == (
        True,
        [-1.0],
        [],
    )
