"""The router is measured by streams that lose nothing."""

from pathlib import Path

from bench import router
from bench.quick_shard import router_over_quick_shard


def test_router_streams_every_token_of_the_fake_shard(tmp_path: Path) -> None:
    with router_over_quick_shard(tmp_path) as served:
        # Raises when a token is missing.
        measured = router.measure_round(served, num_streams=4, num_tokens=8)
    assert measured.tokens_per_s > 0
