"""Philox against published vectors, its uniform numbers, and the exact draw from masses."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model_server.sampling.filters import draw, philox4x32, uniforms, whole_masses
from tests.hypothesis_profiles import more_examples

MASSES = st.lists(st.integers(0, 2**20), min_size=1, max_size=128).filter(any)
# Random123's known answers for philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    (
        [0, 0, 0, 0],
        [0, 0],
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
    ),
    (
        [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF],
        [0xFFFFFFFF, 0xFFFFFFFF],
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert philox4x32(counter, key).tolist() == expected


def test_a_batch_gives_what_each_counter_gives_alone() -> None:
    counters, keys, expected = (list(column) for column in zip(*KNOWN_ANSWERS, strict=True))
    assert philox4x32(counters, keys).tolist() == expected


def test_the_uniform_number_is_made_of_the_first_two_words() -> None:
    (only,) = uniforms(np.array([0], dtype=np.uint64), np.array([0], dtype=np.uint64))
    assert only == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53


def test_seed_and_position_use_all_of_their_64_bits() -> None:
    def draw_of(seed: int, position: int) -> float:
        (only,) = uniforms(np.array([seed], np.uint64), np.array([position], np.uint64))
        return float(only)

    draws = [draw_of(s, p) for s in (0, 1, 2**32, 2**63) for p in (0, 1, 2**32, 2**63)]
    assert len(set(draws)) == len(draws)


def test_seeds_and_positions_broadcast() -> None:
    seeds = np.arange(3, dtype=np.uint64)[:, None]
    positions = np.arange(5, dtype=np.uint64)[None, :]
    table = uniforms(seeds, positions)
    assert table.shape == (3, 5)
    assert table[2, 4] == uniforms(seeds[2], positions[0, 4:])[0]


def test_numbers_lie_in_the_unit_interval_and_are_uniform() -> None:
    seeds = np.arange(200, dtype=np.uint64)[:, None]
    numbers = uniforms(seeds, np.arange(1000, dtype=np.uint64)[None, :]).ravel()
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.histogram(numbers, bins=100, range=(0.0, 1.0))[0]
    expected = numbers.size / 100
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 99 degrees of freedom: 160 is beyond the 99.99th percentile.
    assert chi_square < 160.0


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    seeds = np.arange(300, dtype=np.uint64)[:, None]
    table = uniforms(seeds, np.arange(300, dtype=np.uint64)[None, :])
    along_positions = np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]
    along_seeds = np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]
    # The deviation of a correlation of 90 000 independent pairs is 0.0033.
    assert abs(along_positions) < 0.015
    assert abs(along_seeds) < 0.015


@more_examples(2)
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
    masses[0, 3] = 2.0**52
    masses[0, 90] = 1.0
    assert int(draw(masses, almost_one)[0]) == 90


def test_the_first_possible_draw_skips_tokens_without_mass() -> None:
    masses = torch.zeros(1, 128)
    masses[0, 70] = 5.0
    assert int(draw(masses, torch.zeros(1, dtype=torch.float64))[0]) == 70


def test_zeros_in_between_and_other_rows_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(50, 64, generator=generator)
    numbers = torch.rand(50, generator=generator, dtype=torch.float64)
    narrow = draw(whole_masses(weights, 40), numbers)[0]
    places = torch.randperm(6400, generator=generator)[:64].sort().values
    wide = torch.zeros(50, 6400)
    wide[:, places] = weights
    spread = draw(whole_masses(wide, 40), numbers)[0]
    assert torch.equal(places[narrow], spread)
    alone = [draw(whole_masses(wide[i : i + 1], 40), numbers[i : i + 1])[0] for i in range(50)]
    assert torch.equal(torch.cat(alone), spread)


def test_a_broken_row_gives_an_index_within_the_row() -> None:
    rows = torch.stack((torch.full((64,), torch.nan), torch.zeros(64), torch.ones(64)))
    index, _ = draw(rows, torch.full((3,), 0.5, dtype=torch.float64))
    assert int(index.min()) >= 0
    assert int(index.max()) < 64
    assert int(index[2]) == 32
