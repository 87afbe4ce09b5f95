"""A stream over a tokenizer whose tokens are longer than a character."""

from pathlib import Path

import pytest

from router.batch import Generation, SampledToken
from router.events import Finished, TokenGenerated
from router.request import GenerateRequest, SamplingParams, StopParams
from router.stream import Stream
from router.text.tokenizer import Tokenizer
from tests.router.text.small_tokenizers import byte_level, save


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
    told = [event.token.text for event in events if isinstance(event, TokenGenerated)]
    assert told == (["The", " quick", " br"] if keep else ["The", " qui", ""])
    tokenizer.close()
