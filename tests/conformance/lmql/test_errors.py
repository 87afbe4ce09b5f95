"""What goes wrong ends in an exception that a program can catch: lmql waits for ever otherwise.

There is one case that no server can help in: who kills the router, so that its sockets close in the
middle of a stream, makes lmql 0.7.3 wait for ever. A router that is told to stop ends its streams.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import lmql
import pytest
from lmql.models.lmtp.errors import LMTPStreamError

from tests.byte_tokenizer import save_byte_tokenizer
from tests.conformance.lmql.asking import run, within
from tests.conformance.serving import Fake, Served, faked, occupied

STORY = "Once there was a fox"
LONG = f'argmax(chunksize=64) "{STORY}[TEXT]" where len(TOKENS(TEXT)) < 200'
KEY = "a-key"


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fake shard's tokenizer, so that transformers' AutoTokenizer knows its class."""
    folder: Path = save_byte_tokenizer(tmp_path_factory.mktemp("tokenizer") / "bytes")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture
def letters(fake: Fake, byte_tokenizer: str) -> lmql.LLM:
    """A model without a model: it makes a letter for each token, quickly."""
    return lmql.model(fake.model, endpoint=fake.url, tokenizer=byte_tokenizer)


@pytest.fixture(scope="module")
def locked() -> Iterator[Fake]:
    with faked("--api-key", KEY) as fake:
        yield fake


async def test_a_model_that_is_not_served_is_an_error_that_names_it(served: Served) -> None:
    other = lmql.model("no/such-model", endpoint=served.url, tokenizer=served.model)
    for asked in (other.generate(STORY, max_tokens=4), other.score(STORY, [" and", " or"])):
        with pytest.raises(LMTPStreamError, match="no/such-model"):
            await within(asked)


async def test_a_prompt_beyond_the_context_is_an_error_with_its_length(model: lmql.LLM) -> None:
    with pytest.raises(LMTPStreamError, match="1024"):
        await run(f'argmax(max_len=9000) "{"fox " * 1500}[TEXT]"', model)


async def test_parameters_out_of_range_are_an_error_that_names_them(model: lmql.LLM) -> None:
    with pytest.raises(LMTPStreamError, match="top_p"):
        await run(f'sample(temperature=1.0, top_p=2.5) "{STORY}[TEXT]"', model)


async def test_after_an_error_the_server_answers_the_next(model: lmql.LLM) -> None:
    with pytest.raises(LMTPStreamError):
        await run(f'sample(temperature=1.0, top_p=2.5) "{STORY}[TEXT]"', model)
    assert await within(model.generate(STORY, max_tokens=4))


async def test_an_error_of_one_query_leaves_those_beside_it(
    served: Served, model: lmql.LLM
) -> None:
    other = lmql.model("no/such-model", endpoint=served.url, tokenizer=served.model)
    good, bad = await within(
        asyncio.gather(
            model.generate(STORY, max_tokens=40),
            other.generate(STORY, max_tokens=40),
            return_exceptions=True,
        )
    )
    assert isinstance(good, str)
    assert isinstance(bad, LMTPStreamError)


async def test_a_row_that_fails_in_the_first_step(fake: Fake, letters: lmql.LLM) -> None:
    fake.order(row_error="a NaN")
    with pytest.raises(LMTPStreamError, match="a NaN"):
        await run(LONG, letters)


@pytest.mark.parametrize("method", ["Prefill", "Decode"])
async def test_a_step_that_fails_in_the_middle_of_a_stream(
    fake: Fake, letters: lmql.LLM, method: str
) -> None:
    fake.order(fails=method)
    with pytest.raises(LMTPStreamError):
        await run(LONG, letters)


async def test_a_server_that_is_stopped_in_the_middle_of_a_stream(byte_tokenizer: str) -> None:
    with faked("--graceful-termination-timeout", "1") as fake:
        fake.order(delay_s=0.1)
        stopped = lmql.model(fake.model, endpoint=fake.url, tokenizer=byte_tokenizer)
        asked = asyncio.create_task(run(LONG, stopped))
        await asyncio.to_thread(fake.stop_amid_an_answer)
        with pytest.raises((LMTPStreamError, RuntimeError, ConnectionError)):
            await within(asked)


async def test_a_full_server_says_so(byte_tokenizer: str) -> None:
    with faked("--max-concurrent-requests", "1") as fake:
        fake.order(delay_s=0.1)
        busy = lmql.model(fake.model, endpoint=fake.url, tokenizer=byte_tokenizer)
        with occupied(fake), pytest.raises(LMTPStreamError, match="at most 1 may"):
            await within(busy.generate(STORY, max_tokens=4))


async def test_a_key_is_taken_from_the_endpoint(locked: Fake, byte_tokenizer: str) -> None:
    host = locked.url.removeprefix("http://")
    for endpoint in (f"http://anyone:{KEY}@{host}", f"http://{host}/?key={KEY}"):
        let_in = lmql.model(locked.model, endpoint=endpoint, tokenizer=byte_tokenizer)
        assert await within(let_in.generate(STORY, max_tokens=4))


@pytest.mark.parametrize("endpoint", ["http://{host}", "http://anyone:wrong@{host}"])
async def test_without_the_key_there_is_no_connection(
    locked: Fake, byte_tokenizer: str, endpoint: str
) -> None:
    host = locked.url.removeprefix("http://")
    stranger = lmql.model(
        locked.model, endpoint=endpoint.format(host=host), tokenizer=byte_tokenizer
    )
    with pytest.raises(RuntimeError, match="401"):
        await within(stranger.generate(STORY, max_tokens=4))
