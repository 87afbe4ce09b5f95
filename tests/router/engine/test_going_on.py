"""Outputs that were cut or paused and continue: refusals, events, ends."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.contract import FinishReason, Generation, SampledToken, TopToken
from router.engine.infer import Infer
from router.engine.stream import Stream
from router.engine.validation import RawParams, Validation
from router.request.errors import InvalidRequest
from router.request.request import Event, Finished, GenerateRequest, TokenGenerated
from tests.byte_tokenizer import EOS_ID, byte_ids
from tests.fake_script import Followed
from tests.fakes import FakeShard
from tests.router.rig import (
    ANY_TEXT,
    PROMPT,
    asking,
    byte_tokenizer,
    end_of,
    events_of,
    expected_text,
    methods,
    routing,
    says,
)
from tests.router.validating import LIMITS

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
        limits = replace(LIMITS, vocab_size=258, eos_token_ids=(EOS_ID,))
        validation = Validation(limits, byte_tokenizer())
        with pytest.raises(InvalidRequest) as refused:
            await validation.validate("once", params)
        assert str(refused.value) == sentence
        assert refused.value.field == params.name(refused.value.field or "")

    async def test_an_end_that_is_to_be_ignored_is_none(self) -> None:
        limits = replace(LIMITS, vocab_size=258, eos_token_ids=(EOS_ID,))
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
