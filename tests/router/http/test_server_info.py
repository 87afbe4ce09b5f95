"""What the server says of itself, from flags and shard."""

import pytest

from proto.contract import ModelInfo
from router.config import RouterConfig
from router.http.server_info import max_drafts_of
from router.request.errors import StartupFailed


def served_by(executor: str, *, is_invariant: bool) -> ModelInfo:
    return ModelInfo(
        model_id="m",
        model_type="llama",
        dtype="bfloat16",
        device_type="cpu",
        executor=executor,
        block_size=16,
        vocab_size=100,
        max_position_embeddings=64,
        window_len=None,
        eos_token_ids=(1,),
        world_size=1,
        rank=0,
        is_invariant=is_invariant,
    )


@pytest.mark.parametrize(("speculate", "max_drafts"), [(None, 7), (0, 0), (3, 3)])
def test_drafts_are_on_where_they_change_no_answer(speculate: int | None, max_drafts: int) -> None:
    dense = served_by("dense, bf16, amx", is_invariant=True)
    assert max_drafts_of(RouterConfig(speculate=speculate), dense) == max_drafts


def test_drafts_are_off_and_refused_where_they_would_change_answers() -> None:
    zoo = served_by("zoo, sdpa", is_invariant=False)
    assert max_drafts_of(RouterConfig(), zoo) == max_drafts_of(RouterConfig(speculate=0), zoo) == 0
    with pytest.raises(StartupFailed, match=r"--speculate 3: .* the executor `zoo, sdpa` depend"):
        max_drafts_of(RouterConfig(speculate=3), zoo)
