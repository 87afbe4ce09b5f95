"""What the figures of bench/ rest on: prompts, and the router over a fake shard."""

from pathlib import Path

from tokenizers import Tokenizer

from bench import router
from bench.load import Load, random_prompts
from bench.quick_shard import router_over_quick_shard
from launcher import BUNDLED_MODEL


def test_router_streams_every_token_of_the_fake_shard(tmp_path: Path) -> None:
    with router_over_quick_shard(tmp_path) as served:
        # Raises when a token is missing.
        measured = router.measure_round(served, num_streams=4, num_tokens=8)
    assert measured.tokens_per_s > 0


def test_random_prompts_have_the_requested_length() -> None:
    tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    load = Load(num_requests=8, prompt_len=16, output_len=1, concurrency=1)
    prompts = random_prompts(tokenizer, load)
    assert len(set(prompts)) == 8
    lengths = {len(tokenizer.encode(text, add_special_tokens=False).ids) for text in prompts}
    assert lengths == {16}
