"""A stream over a tokenizer whose tokens are longer than a character."""

from pathlib import Path

import pytest

from proto.contract import FinishReason, Generation, SampledToken, SamplingParams, StopParams
from router.engine.stream import Stream
from router.request.errors import ShardFailed
from router.request.request import Failed, Finished, GenerateRequest, TokenGenerated
from router.text.tokenizer import Tokenizer
from tests.router.rig import ANY_TEXT
from tests.router.text.small_tokenizers import byte_fallback, byte_level, save


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
