"""Stop strings and stop tokens, through the batcher: text, tokens and the work that ends."""

import pytest

from proto.contract import FinishReason, LogprobParams
from router.request.request import TokenGenerated
from tests.byte_tokenizer import byte_ids
from tests.router.rig import (
    asking,
    end_of,
    events_of,
    methods,
    routing,
    says,
    settled,
    texts_of,
)


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
