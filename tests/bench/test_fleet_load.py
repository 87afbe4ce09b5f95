"""Prompts of a load share their beginnings, and its figures leave out what warmed up."""

from bench.fleet_load import figures_of, prompts_of
from bench.load import Trace


def test_conversations_grow_by_four_turns_below_a_few_system_prompts() -> None:
    prompts = prompts_of([" one", " two", " three", " four"], 400, 512, seed=0)
    assert len({prompt[:500] for prompt in prompts}) <= 12
    grown = [
        later
        for number, later in enumerate(prompts)
        if any(later != one and later.startswith(one) for one in prompts[:number])
    ]
    # Three of four turns repeat what was said before.
    assert 0.5 < len(grown) / len(prompts) < 0.8
    first, again = (prompts_of([" one", " two"], 9, 64, seed=1) for _ in range(2))
    assert first == again


def test_goodput_counts_whole_answers_that_began_in_time() -> None:
    begun = [
        Trace(float(number), [first_s, 3.0], num_tokens=10, ended_s=number + 4.0)
        for number, first_s in enumerate((9.0, 0.5, 0.5, 2.0, 0.5))
    ]
    begun.append(Trace(5.0, [0.5], num_tokens=1, error="HTTP 503", ended_s=5.5))
    found = figures_of(begun, good_s=1.0)
    # From 1.25 s on: the third and the fifth of those that count, until 8 s.
    assert (found["num_requests"], found["num_errors"]) == (4, 1)
    assert found["good_share"] == 0.5
    assert found["goodput_tokens_per_s"] == round(20 / (8.0 - 1.25), 1)
    assert found["ttft_ms_p50"] == 500.0
