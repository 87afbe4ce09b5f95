"""Philox against published vectors, and the uniform numbers made of it."""

import numpy as np
import pytest

from model_server.sampling.philox import philox4x32, uniforms

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
    def draw(seed: int, position: int) -> float:
        (only,) = uniforms(np.array([seed], np.uint64), np.array([position], np.uint64))
        return float(only)

    draws = [draw(s, p) for s in (0, 1, 2**32, 2**63) for p in (0, 1, 2**32, 2**63)]
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
