"""A load is of prompts as long as they are said to be, and a report of what its clients saw."""

from tokenizers import Tokenizer

from bench.load import Load, Trace, random_prompts, report
from launcher import BUNDLED_MODEL


def test_random_prompts_have_the_requested_length() -> None:
    tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    load = Load(num_requests=8, prompt_len=16, output_len=1, concurrency=1)
    prompts = random_prompts(tokenizer, load)
    assert len(set(prompts)) == 8
    lengths = {len(tokenizer.encode(text, add_special_tokens=False).ids) for text in prompts}
    assert lengths == {16}


def test_a_request_that_failed_counts_as_an_error_and_not_in_the_figures() -> None:
    done = Trace(0.0, [0.1, 0.2, 0.4], num_tokens=3, ended_s=0.4)
    failed = Trace(0.0, [9.0], num_tokens=1, error="HTTP 429", ended_s=9.0)
    found = report([done, done, failed], wall_s=2.0)
    assert (found.num_requests, found.num_errors, found.errors) == (3, 1, {"HTTP 429": 1})
    assert (found.num_output_tokens, found.output_tokens_per_s) == (6, 3.0)
    assert (found.ttft_ms_p50, found.latency_ms_p99) == (100.0, 400.0)
    assert found.itl_ms_p50 == 150.0
