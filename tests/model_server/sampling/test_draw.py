"""The inverse of the cumulative distribution, exactly."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.sampling.draw import draw, whole_masses

MASSES = st.lists(st.integers(0, 2**20), min_size=1, max_size=128).filter(any)


@settings(deadline=None, max_examples=100)
@given(masses=MASSES, uniform=st.floats(0.0, 1.0, exclude_max=True))
def test_the_first_token_whose_cumulative_mass_exceeds_the_target(
    masses: list[int], uniform: float
) -> None:
    total = sum(masses)
    target = min(int(uniform * total), total - 1)
    expected = next(i for i in range(len(masses)) if sum(masses[: i + 1]) > target)
    row = torch.tensor([masses + [0] * (128 - len(masses))], dtype=torch.float64)
    index, totals = draw(row, torch.tensor([uniform], dtype=torch.float64))
    assert int(index) == expected
    assert int(totals) == total


def test_the_last_possible_draw_takes_the_last_token_with_mass() -> None:
    almost_one = torch.tensor([1.0 - 2.0**-53], dtype=torch.float64)
    masses = torch.zeros(1, 128, dtype=torch.float64)
    masses[0, 3], masses[0, 90] = 2.0**52, 1.0
    assert int(draw(masses, almost_one)[0]) == 90


def test_the_first_possible_draw_skips_tokens_without_mass() -> None:
    masses = torch.zeros(1, 128)
    masses[0, 70] = 5.0
    assert int(draw(masses, torch.zeros(1, dtype=torch.float64))[0]) == 70


def test_zeros_in_between_and_other_rows_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(50, 64, generator=generator)
    uniforms = torch.rand(50, generator=generator, dtype=torch.float64)
    narrow = draw(whole_masses(weights, 40), uniforms)[0]
    places = torch.randperm(6400, generator=generator)[:64].sort().values
    wide = torch.zeros(50, 6400)
    wide[:, places] = weights
    spread = draw(whole_masses(wide, 40), uniforms)[0]
    assert torch.equal(places[narrow], spread)
    alone = [draw(whole_masses(wide[i : i + 1], 40), uniforms[i : i + 1])[0] for i in range(50)]
    assert torch.equal(torch.cat(alone), spread)


def test_a_broken_row_gives_an_index_within_the_row() -> None:
    rows = torch.stack((torch.full((64,), torch.nan), torch.zeros(64), torch.ones(64)))
    index, _ = draw(rows, torch.full((3,), 0.5, dtype=torch.float64))
    assert int(index.min()) >= 0
    assert int(index.max()) < 64
    assert int(index[2]) == 32
