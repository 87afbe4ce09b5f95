"""Texts and ends: stop strings and tokens, constraints, outputs that were cut and go on."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto import generate_pb2 as pb
from proto.contract import (
    FinishReason,
    Generation,
    LogprobParams,
    SampledToken,
    SamplingParams,
    StopParams,
    TopToken,
)
from router.engine.infer import Infer
from router.engine.stream import Stream
from router.engine.validation import RawParams, Validation
from router.request.errors import InvalidRequest, RowFailed, ShardFailed
from router.request.request import (
    Constraint,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    TokenGenerated,
)
from router.text.tokenizer import Tokenizer
from tests.byte_tokenizer import EOS_ID, byte_ids
from tests.fake_script import Followed
from tests.fakes import FakeShard
from tests.router.rig import (
    ANY_TEXT,
    PROMPT,
    VALIDATION_LIMITS,
    asking,
    byte_tokenizer,
    end_of,
    error_of,
    events_of,
    expected_text,
    methods,
    routing,
    says,
    settled,
    texts_of,
)
from tests.router.text.small_tokenizers import byte_fallback, byte_level, save


async def test_old_tokens_are_events_again_a_few_in_each_turn_of_the_event_loop() -> None:
    old_ids = tuple(byte_ids("abc" * 300))
    request = GenerateRequest(
        (5,), "", SamplingParams(), StopParams(1000), output_ids=old_ids, is_moved=True
    )
    stream = Stream(1, request, byte_tokenizer(), 0.0)
    first = await stream.take()
    stream.add(Generation(1, (SampledToken(old_ids[0], -0.5),)), 1.0)
    rest = await stream.take()

    events = [*first, *rest]
    assert len(first) == 256
    assert [each.token.token_id for each in events if isinstance(each, TokenGenerated)] == [
        *old_ids,
        old_ids[0],
    ]


def generation(token_id: int, reason: FinishReason | None = None) -> Generation:
    return Generation(1, (SampledToken(token_id, -0.5),), reason)


def short_request() -> GenerateRequest:
    return GenerateRequest((5,), "", SamplingParams(), StopParams(10))


async def test_a_sink_takes_bursts_in_place_of_a_reader_that_waits() -> None:
    first, second, third, last = byte_ids("abcd")
    taken: list[str] = []
    is_ready = True

    def sink(burst: Sequence[Event]) -> bool:
        if is_ready:
            taken.append("".join(each.text for each in burst if isinstance(each, TokenGenerated)))
        return is_ready

    stream = Stream(1, short_request(), byte_tokenizer(), 0.0)
    stream.sink = sink
    stream.add(generation(first), 1.0)
    stream.wake()
    assert taken == []
    assert len(await stream.take()) == 1
    reader = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    stream.add(generation(second), 2.0)
    stream.wake()
    assert (taken, stream.num_unread) == (["b"], 0)
    is_ready = False
    stream.add(generation(third), 3.0)
    stream.wake()
    (event,) = await reader
    assert isinstance(event, TokenGenerated)
    assert event.text == "c"
    is_ready = True
    reader = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    stream.add(generation(last, FinishReason.LENGTH), 4.0)
    stream.wake()
    assert isinstance((await reader)[-1], Finished)
    assert taken == ["b"]


async def test_what_goes_wrong_in_a_sink_is_its_readers_error() -> None:
    def sink(burst: Sequence[Event]) -> bool:
        raise ZeroDivisionError

    stream = Stream(1, short_request(), byte_tokenizer(), 0.0)
    stream.sink = sink
    reader = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    stream.add(generation(byte_ids("a")[0]), 1.0)
    stream.wake()
    with pytest.raises(ZeroDivisionError):
        await reader


@pytest.mark.parametrize("keep", [True, False])
async def test_the_texts_of_tokens_end_in_the_middle_of_one_where_the_text_does(
    keep: bool, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path))
    ids = tokenizer.encode("The quick brown fox", add_special_tokens=False)
    assert len(ids) == 4, "a token for each word"
    stop = StopParams(20, stop_strings=("ck br",), keep_stop_string=keep)
    stream = Stream(1, GenerateRequest((5,), "", SamplingParams(), stop), tokenizer, 0.0)
    for token_id in ids:
        if stream.end is None:
            stream.add(Generation(1, (SampledToken(token_id, -0.5),)), 1.0)
    events = await stream.take()
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.text == ("The quick br" if keep else "The qui")
    texts = [event.token.text for event in events if isinstance(event, TokenGenerated)]
    assert texts == (["The", " quick", " br"] if keep else ["The", " qui", ""])
    tokenizer.close()


@pytest.mark.parametrize(
    ("reason", "last"),
    [(FinishReason.STOP_TOKEN, " fox"), (FinishReason.CONSTRAINT_COMPLETE, "</s>")],
)
async def test_the_token_that_ends_a_constrained_text_is_no_part_of_it(
    reason: FinishReason, last: str, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path))
    ids = tokenizer.encode(f"The quick{last}", add_special_tokens=False)
    assert len(ids) == 3
    request = GenerateRequest(
        (5,),
        "",
        SamplingParams(),
        StopParams(20, stop_token_ids=(ids[-1],), keep_stop_string=True),
        skip_special_tokens=False,
        constraint=ANY_TEXT,
    )
    stream = Stream(1, request, tokenizer, 0.0)
    tokens = tuple(SampledToken(token_id, -0.5) for token_id in ids)
    stream.add(Generation(1, tokens, finish_reason=reason, constraint_satisfied=True), 1.0)
    end = (await stream.take())[-1]
    assert isinstance(end, Finished)
    assert end.text == "The quick"
    tokenizer.close()


async def test_a_constrained_text_keeps_the_space_that_begins_it_behind_an_empty_prompt(
    tmp_path: Path,
) -> None:
    tokenizer = Tokenizer.load(save(byte_fallback(), tmp_path))
    prompt_ids = tuple(tokenizer.encode(""))
    text_ids = tokenizer.encode("the the", add_special_tokens=False)
    texts = []
    for constraint in (None, ANY_TEXT):
        request = GenerateRequest(
            prompt_ids, "", SamplingParams(), StopParams(20), constraint=constraint
        )
        stream = Stream(1, request, tokenizer, 0.0)
        tokens = tuple(SampledToken(token_id, -0.5) for token_id in text_ids)
        stream.add(Generation(1, tokens, finish_reason=FinishReason.LENGTH), 1.0)
        end = (await stream.take())[-1]
        assert isinstance(end, Finished)
        texts.append(end.text)
    assert texts == ["the the", " the the"]
    tokenizer.close()


async def test_a_failure_comes_behind_the_tokens_that_were_made_before_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path))
    request = GenerateRequest((5,), "", SamplingParams(), StopParams(20))
    stream = Stream(1, request, tokenizer, 0.0)
    stream.add(Generation(1, (SampledToken(9, -0.5),)), 1.0)
    stream.fail(ShardFailed("the device fell off"))
    bursts = [[type(event) for event in await stream.take()] for _ in range(3)]
    assert bursts == [[TokenGenerated], [Failed], []]
    tokenizer.close()


@pytest.mark.parametrize(("keep", "text"), [(True, "one END"), (False, "one ")])
async def test_a_stop_string_across_tokens_ends_the_text_and_the_work(
    keep: bool, text: str
) -> None:
    shard = says("one END two three four five six")
    async with routing(shard) as rig:
        request = asking(max_new_tokens=30, stop=("END",), keep_stop_string=keep)
        events = await events_of(rig.batcher.submit(request))
        end = end_of(events)
        assert (end.text, end.reason, end.stop_string) == (text, FinishReason.STOP_STRING, "END")
        assert "".join(texts_of(events)) + end.tail == text
        await settled(rig)
        assert shard.num_held == 0
        # The step under way when it is found, and the one that drops the request.
        num_steps = methods(shard).count("Prefill") + methods(shard).count("Decode")
        assert num_steps <= len("one END") + 2


async def test_what_could_have_become_a_stop_string_is_in_the_tail() -> None:
    async with routing(says("one EN")) as rig:
        request = asking(max_new_tokens=6, stop=("END",), keep_stop_string=False)
        events = await events_of(rig.batcher.submit(request))
        assert texts_of(events)[-2:] == ["", ""]
        assert (end_of(events).tail, end_of(events).text) == ("EN", "one EN")


@pytest.mark.parametrize(("keep", "text"), [(True, "ab."), (False, "ab")])
async def test_a_stop_token_ends_it_and_stays_or_goes(keep: bool, text: str) -> None:
    stop_ids = tuple(byte_ids("."))
    async with routing(says("ab.cd")) as rig:
        request = asking(stop_token_ids=stop_ids, keep_stop_string=keep)
        end = end_of(await events_of(rig.batcher.submit(request)))
        assert (end.text, end.reason, end.stop_token_id) == (
            text,
            FinishReason.STOP_TOKEN,
            stop_ids[0],
        )


async def test_what_the_chat_template_ends_answers_with_is_the_models_end() -> None:
    stop_ids = tuple(byte_ids("."))
    async with routing(says("ab.cd")) as rig:
        asked = replace(
            asking(stop_token_ids=stop_ids, keep_stop_string=False), template_end_ids=stop_ids
        )
        end = end_of(await events_of(rig.batcher.submit(asked)))
        assert (end.text, end.reason, end.stop_token_id) == ("ab", FinishReason.EOS, None)


@pytest.mark.parametrize(
    ("keep", "texts", "text"),
    [
        (True, ["a", "b", "c", "d"], "abcd"),
        (False, ["a", "b", "", ""], "ab"),
    ],
)
async def test_tokens_tell_no_more_of_a_stop_string_than_the_text_does(
    keep: bool, texts: list[str], text: str
) -> None:
    async with routing(says("abcdef")) as rig:
        request = asking(
            max_new_tokens=20,
            stop=("cd",),
            keep_stop_string=keep,
            logprobs=LogprobParams(num_top_tokens=2),
        )
        events = await events_of(rig.batcher.submit(request))
        tokens = [event for event in events if isinstance(event, TokenGenerated)]
        assert [event.token.text for event in tokens] == texts
        assert end_of(events).text == text
        seen = [other.text for event in tokens for other in event.top_tokens]
        assert ("c" in seen, len(seen)) == ((True, 8) if keep else (True, 4))


async def test_tokens_held_for_a_stop_string_are_reported_whole_when_there_is_none() -> None:
    async with routing(says("abc")) as rig:
        request = asking(max_new_tokens=20, stop=("bcd",), keep_stop_string=False)
        events = await events_of(rig.batcher.submit(request))
        tokens = [event for event in events if isinstance(event, TokenGenerated)]
        assert [event.token.text for event in tokens] == ["a", "b", "c", "</s>"]


def forcing(shard: FakeShard, num_forced: int) -> FakeShard:
    """A shard that takes so many tokens more after each one that it draws."""
    shard.followed = Followed(num_forced=lambda _: num_forced)
    return shard


def num_steps(shard: FakeShard) -> int:
    called = methods(shard)
    return called.count("Prefill") + called.count("Decode")


@pytest.mark.parametrize("num_forced", [0, 1, 3, 9])
async def test_a_run_says_what_single_tokens_would(num_forced: int) -> None:
    shard = forcing(FakeShard(), num_forced)
    async with routing(shard) as rig:
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=8, constraint=ANY_TEXT)))
        text = expected_text(PROMPT, 8)
        assert texts_of(events) == list(text)
        end = end_of(events)
        assert (end.text, end.reason, end.num_generated_tokens) == (text, FinishReason.LENGTH, 8)
        num_needed = -(-8 // (num_forced + 1))
        # The last one's tokens are not known yet when a further step is sent.
        assert num_needed <= num_steps(shard) <= num_needed + 1
        assert rig.metrics.output_tokens.value() == 8
        assert rig.metrics.inter_token_latency.count() == 7
        assert rig.metrics.forced_tokens.value() == 8 - num_needed
        assert rig.metrics.constraint_ends.value("satisfied") == 1


async def test_runs_beside_each_other_and_long_prompts_in_small_steps() -> None:
    shard = forcing(FakeShard(num_blocks=40), 5)
    async with routing(shard, max_step_tokens=8) as rig:
        prompts = [f"{index} upon a time" * (1 + index % 3) for index in range(8)]
        streams = [
            rig.batcher.submit(asking(prompt, 9, constraint=ANY_TEXT if index % 2 else None))
            for index, prompt in enumerate(prompts)
        ]
        for prompt, stream in zip(prompts, streams, strict=True):
            assert end_of(await events_of(stream)).text == expected_text(prompt, 9)


async def test_it_ends_where_nothing_but_the_end_may_follow() -> None:
    shard = forcing(says("[1, 2]"), 2)
    async with routing(shard) as rig:
        request = asking(max_new_tokens=9, constraint=ANY_TEXT)
        end = end_of(await events_of(rig.batcher.submit(request)))
        assert (end.text, end.reason) == ("[1, 2]", FinishReason.CONSTRAINT_COMPLETE)
        assert (end.num_generated_tokens, end.constraint_satisfied) == (6, True)
        assert num_steps(shard) <= 3


async def test_an_empty_text_is_an_answer_and_scores_its_prompt() -> None:
    async with routing(says("")) as rig:
        request = asking(constraint=ANY_TEXT, logprobs=LogprobParams(prompt=True))
        events = await events_of(rig.batcher.submit(request))
        assert [type(event).__name__ for event in events] == ["PromptScored", "Finished"]
        end = end_of(events)
        assert (end.text, end.num_generated_tokens) == ("", 0)


@pytest.mark.parametrize("satisfied", [True, False])
async def test_the_shard_says_whether_a_constraint_is_satisfied(satisfied: bool) -> None:
    shard = FakeShard()
    shard.followed = Followed(satisfied=satisfied)
    async with routing(shard) as rig:
        end = end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert end.constraint_satisfied is satisfied
        without = end_of(await events_of(rig.batcher.submit(asking())))
        assert without.constraint_satisfied is None


async def test_a_shard_that_does_not_say_it_promises_nothing() -> None:
    def forget(answer: pb.StepResponse) -> None:
        for generation in answer.generations:
            generation.ClearField("constraint_satisfied")

    shard = FakeShard()
    shard.faults.spoil = forget
    async with routing(shard) as rig:
        end = end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert end.constraint_satisfied is False


@pytest.mark.parametrize(("keep", "text"), [(True, "one END"), (False, "one ")])
async def test_a_stop_string_within_a_run_ends_the_text_there(keep: bool, text: str) -> None:
    shard = forcing(says("one END and more"), 20)
    async with routing(shard) as rig:
        request = asking(
            max_new_tokens=30, stop=("END",), keep_stop_string=keep, constraint=ANY_TEXT
        )
        events = await events_of(rig.batcher.submit(request))
        end = end_of(events)
        assert (end.text, end.reason) == (text, FinishReason.STOP_STRING)
        assert (end.num_generated_tokens, end.constraint_satisfied) == (7, True)
        assert "".join(texts_of(events)) + end.tail == text
        await settled(rig)


async def test_a_phrase_of_the_constraint_is_left_out_though_stop_strings_stay() -> None:
    constraint: Constraint = replace(ANY_TEXT, dropped_phrases=("\n\n",))
    async with routing(says("Q: a\n\nmore!")) as rig:
        request = asking(max_new_tokens=20, stop=("!",), constraint=constraint)
        events = await events_of(rig.batcher.submit(request))
        end = end_of(events)
        assert (end.text, end.stop_string) == ("Q: a", "\n\n")
        texts = [event.token.text for event in events if isinstance(event, TokenGenerated)]
        assert "".join(texts) == "Q: a"


async def test_a_row_that_its_constraint_breaks_fails_alone() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        broken = rig.batcher.submit(asking(max_new_tokens=20, constraint=ANY_TEXT))
        other = rig.batcher.submit(asking(max_new_tokens=20))
        await broken.take()
        shard.faults.row_errors[broken.request_id] = "the engine broke"
        error = error_of(await events_of(broken))
        assert isinstance(error, RowFailed)
        assert str(error) == "the engine broke"
        assert end_of(await events_of(other)).num_generated_tokens == 20


async def test_masks_are_measured_where_there_are_any() -> None:
    def masked(answer: pb.StepResponse) -> None:
        if answer.generations and answer.generations[0].request_id == 2:
            answer.num_masked_rows = 1
            answer.mask_ns = 2_000_000
            answer.mask_wait_ns = 500_000

    shard = FakeShard()
    shard.faults.spoil = masked
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(asking()))
        assert rig.metrics.mask_duration.count() == 0
        await events_of(rig.batcher.submit(asking(max_new_tokens=3, constraint=ANY_TEXT)))
        metrics = rig.metrics
        assert (metrics.mask_duration.count(), metrics.masked_rows.value()) == (3, 3)
        assert metrics.mask_duration.sum() == pytest.approx(0.006)
        assert metrics.mask_wait_duration.sum() == pytest.approx(0.0015)
        assert metrics.constraint_prepare_duration.count("compiled") == 1
        assert metrics.constrained_sequences.value() == 0


NAMES = {"output_ids": "output", "max_new_tokens": "max_tokens"}


def raw(output: str | tuple[int, ...] = "", **more: object) -> RawParams:
    ids = tuple(byte_ids(output)) if isinstance(output, str) else output
    return RawParams(output_ids=ids, names=NAMES, **more)  # type: ignore[arg-type]


class TestRefusals:
    """An output that cannot be gone on with is refused, in words."""

    @pytest.mark.parametrize(
        ("params", "sentence"),
        [
            (
                raw((5, 258)),
                "`output` must be of token ids between 0 and 257. Given: 258",
            ),
            (
                raw("abc", max_new_tokens=3),
                "`output` must be of fewer tokens than `max_tokens`, which is 3 and counts them."
                " Given: 3 tokens",
            ),
            (
                raw((5, EOS_ID, 6)),
                "`output` must be an output that has not ended. Given: token 0 at 1 ends it",
            ),
            (
                raw((5, 9), stop_token_ids=(9,)),
                "`output` must be an output that has not ended. Given: token 9 at 1 ends it",
            ),
            (
                raw("so be it", stop=("e i",)),
                "`output` must be an output that has not ended. Given: the stop string 'e i' ends"
                " it",
            ),
            (
                raw(decoder_input_details=True, prompt_from=4),
                "`prompt_from` must be less than the prompt's 4 tokens. Given: 4",
            ),
            (
                raw(prompt_from=2),
                "`prompt_from` must be 0 without `decoder_input_details`. Given: 2",
            ),
        ],
    )
    async def test_names_the_field_the_rule_and_what_was_given(
        self, params: RawParams, sentence: str
    ) -> None:
        limits = replace(VALIDATION_LIMITS, vocab_size=258, eos_token_ids=(EOS_ID,))
        validation = Validation(limits, byte_tokenizer())
        with pytest.raises(InvalidRequest) as refused:
            await validation.validate("once", params)
        assert str(refused.value) == sentence
        assert refused.value.field == params.name(refused.value.field or "")

    async def test_the_end_of_the_chat_template_stops_every_request_that_ignores_none(self) -> None:
        limits = replace(
            VALIDATION_LIMITS, vocab_size=258, eos_token_ids=(EOS_ID, 9), template_end_ids=(9,)
        )
        validation = Validation(limits, byte_tokenizer())
        request = await validation.validate("once", raw(stop_token_ids=(5,)))
        assert (request.stop.stop_token_ids, request.template_end_ids) == ((5, 9), (9,))
        request = await validation.validate("once", raw(stop_token_ids=(9,), ignore_eos=True))
        assert (request.stop.stop_token_ids, request.template_end_ids) == ((9,), ())

    async def test_an_end_that_is_to_be_ignored_is_none(self) -> None:
        limits = replace(VALIDATION_LIMITS, vocab_size=258, eos_token_ids=(EOS_ID,))
        validation = Validation(limits, byte_tokenizer())
        request = await validation.validate("once", raw((5, EOS_ID), ignore_eos=True))
        assert request.output_ids == (5, EOS_ID)
        assert (request.stop.max_new_tokens, request.last_len) == (28, 28)


async def all_events(infer: Infer, request: GenerateRequest) -> list[Event]:
    return [event async for burst in infer.submit([request])[0] for event in burst]


def token_events(events: Sequence[Event]) -> list[TokenGenerated]:
    return [event for event in events if isinstance(event, TokenGenerated)]


class TestPauses:
    """A pause ends a stream after so many tokens, and costs nobody a call."""

    async def test_a_pause_leaves_the_shard_by_itself(self) -> None:
        shard = FakeShard()
        async with routing(shard) as rig:
            request = asking(max_new_tokens=9)
            end = end_of(await all_events(rig.infer, replace(request, pause_after=3)))
            assert (end.text, end.reason) == (expected_text(PROMPT, 3), FinishReason.PAUSED)
        assert methods(shard).count("FilterBatch") == 0
        # The one that begins the epoch.
        assert methods(shard).count("ClearCache") == 1

    async def test_a_forced_run_that_goes_beyond_a_pause_is_cut(self) -> None:
        shard = FakeShard()
        shard.followed = Followed(num_forced=lambda _: 5)
        async with routing(shard) as rig:
            request = asking(max_new_tokens=12, constraint=ANY_TEXT)
            made: tuple[int, ...] = ()
            for num_made in (4, 8):
                paused = replace(request, pause_after=4, output_ids=made)
                events = await all_events(rig.infer, paused)
                made += tuple(event.token.token_id for event in token_events(events))
                end = end_of(events)
                assert (end.reason, end.num_generated_tokens) == (FinishReason.PAUSED, 4)
                assert end.constraint_satisfied is None
                assert len(made) == num_made
        assert bytes(token_id - 2 for token_id in made).decode() == expected_text(PROMPT, 8)

    @pytest.mark.parametrize(
        ("text", "max_new_tokens", "reason"),
        [("abcdef", 3, FinishReason.LENGTH), ("ab", 9, FinishReason.EOS)],
    )
    async def test_an_end_at_the_same_token_goes_before_the_pause(
        self, text: str, max_new_tokens: int, reason: FinishReason
    ) -> None:
        async with routing(says(text)) as rig:
            request = asking(max_new_tokens=max_new_tokens)
            end = end_of(await all_events(rig.infer, replace(request, pause_after=3)))
            assert end.reason is reason

    async def test_all_tokens_are_reported_with_their_alternatives(self) -> None:
        request = asking(max_new_tokens=9, stop=("abcd",), keep_stop_string=False)
        request = replace(request, pause_after=3)
        stream = Stream(1, request, byte_tokenizer(), 0.0)
        for token_id in byte_ids("abc"):
            token = SampledToken(token_id, -0.5, (TopToken(token_id, -0.5), TopToken(7, -2.0)))
            stream.add(Generation(1, (token,)), 1.0)
        events = await events_of(stream)
        assert [event.token.text for event in token_events(events)] == ["a", "b", "c"]
        assert [len(event.top_tokens) for event in token_events(events)] == [2, 2, 2]
        end = end_of(events)
        assert (end.text, end.tail, end.reason) == ("", "", FinishReason.PAUSED)


def fed(request: GenerateRequest, token_ids: Sequence[int]) -> tuple[list[int], str, Finished]:
    """The tokens, the text shown and the end of a stream that gets these tokens."""
    stream = Stream(1, request, byte_tokenizer(), 0.0)
    for token_id in token_ids:
        if stream.end is None:
            stream.add(Generation(1, (SampledToken(token_id, -0.5),)), 1.0)
    stream.finish(FinishReason.LENGTH, 2.0)
    assert isinstance(stream.end, Finished)
    events = token_events(asyncio.run(events_of(stream)))
    shown = "".join(event.text for event in events)
    assert shown + stream.end.tail == stream.end.text
    return [event.token.token_id for event in events], shown, stream.end


@given(
    text=st.text("abé日\U0001f600", min_size=2, max_size=12),
    stops=st.lists(st.text("abé日", min_size=1, max_size=3), max_size=2).map(tuple),
    keeps=st.booleans(),
    is_constrained=st.booleans(),
    data=st.data(),
)
def test_pieces_of_cut_streams_are_the_text_of_the_whole(
    text: str, stops: tuple[str, ...], keeps: bool, is_constrained: bool, data: st.DataObject
) -> None:
    request = asking(
        max_new_tokens=99,
        stop=stops,
        keep_stop_string=keeps,
        constraint=ANY_TEXT if is_constrained else None,
    )
    # Bytes of which the last characters may be broken.
    ids = byte_ids(text)[: data.draw(st.integers(1, len(text.encode())), "made")]
    whole_ids, _, whole = fed(request, ids)
    cuts = data.draw(st.lists(st.integers(0, len(whole_ids) - 1), max_size=3).map(sorted), "cuts")
    pieces = []
    done = 0
    for cut in dict.fromkeys(cuts):
        if cut > done:
            output_ids = tuple(ids[:done])
            paused = replace(request, pause_after=cut - done, output_ids=output_ids)
            token_ids, shown, end = fed(paused, ids[done:])
            assert (token_ids, end.tail, end.reason) == (ids[done:cut], "", FinishReason.PAUSED)
            pieces.append(shown)
            done = cut
    token_ids, _, end = fed(replace(request, output_ids=tuple(ids[:done])), ids[done:])
    assert ids[:done] + token_ids == whole_ids
    assert "".join(pieces) + end.text == whole.text
    assert (end.reason, end.stop_string) == (whole.reason, whole.stop_string)
    assert end.tail == whole.tail
    assert end.num_generated_tokens == whole.num_generated_tokens - done


def test_a_stream_knows_what_was_shown_of_the_tokens_before_it() -> None:
    ids = tuple(byte_ids("ab日c"))
    request = asking(max_new_tokens=99, stop=("bx",), keep_stop_string=False)
    streams = [
        Stream(1, replace(request, output_ids=ids[:num_made]), byte_tokenizer(), 0.0)
        for num_made in range(len(ids))
    ]
    assert [stream.text_before for stream in streams] == ["", "a", "a", "a", "a", "ab日"]
