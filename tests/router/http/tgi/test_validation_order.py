"""Of two broken rules the one that TGI names is named: a client may look at the first word."""

from itertools import combinations
from typing import Any

import httpx
import pytest

from router.request.errors import ConstraintRefused
from tests.checks import FakeChecks
from tests.fakes import FakeShard
from tests.router.http.harness import MAX_INPUT_LEN, MAX_TOTAL_LEN, housing

# In TGI's order: what breaks the rule, and words of its message.
RULES: list[tuple[str, dict[str, Any], str]] = [
    ("best_of", {"best_of": 3}, "`best_of` must be between 1 and 2"),
    ("sampling", {"best_of": 2}, "`best_of` must be 1 without sampling"),
    ("temperature", {"temperature": 0.0}, "`temperature` must"),
    ("repetition_penalty", {"repetition_penalty": 0.0}, "`repetition_penalty` must"),
    ("frequency_penalty", {"frequency_penalty": 2.5}, "`frequency_penalty` must"),
    ("top_p", {"top_p": 1.0}, "`top_p` must"),
    ("typical_p", {"typical_p": 0.0}, "`typical_p` must"),
    ("top_k", {"top_k": 0}, "`top_k` must"),
    ("max_new_tokens", {"max_new_tokens": 0}, "`max_new_tokens` must be a whole number"),
    ("stop", {"stop": list("abcde")}, "`stop` must have at most 4"),
    ("seed", {"seed": 1, "best_of": 2, "do_sample": True}, "`seed` must be absent"),
    ("top_n_tokens", {"top_n_tokens": 6}, "`top_n_tokens` must"),
    ("inputs", {"inputs": ""}, "`inputs` must not be empty"),
    ("truncate", {"truncate": 0}, "`truncate` must"),
    (
        "total",
        {"inputs": "x" * 130, "max_new_tokens": 100},
        f"`inputs` tokens + `max_new_tokens` must be at most {MAX_TOTAL_LEN}",
    ),
    ("length", {"inputs": "x" * 130}, f"`inputs` must have at most {MAX_INPUT_LEN} tokens"),
    ("grammar", {"grammar": {"type": "json", "value": "{"}}, "`grammar` is not valid"),
    ("kept", {"grammar": {"type": "regex", "value": "a"}}, "Constraint error: `grammar`: nothing"),
]
WARPERS = {"temperature", "top_p", "typical_p", "top_k", "do_sample"}
PAIRS = [
    (first, second)
    for first, second in combinations(RULES, 2)
    # Not both at once: one value breaks one rule, and a warper asks for sampling.
    if all(first[1][name] == second[1][name] for name in first[1].keys() & second[1].keys())
    and not (first[0] == "sampling" and WARPERS & second[1].keys())
]


NOTHING = ConstraintRefused("nothing satisfies it", "contradiction")


def test_nearly_all_pairs_can_be_broken_at_once() -> None:
    assert len(PAIRS) == 142


async def refusal(client: httpx.AsyncClient, *broken: dict[str, Any]) -> str:
    parameters: dict[str, Any] = {}
    for each in broken:
        parameters |= each
    inputs = parameters.pop("inputs", "hello")
    answer = await client.post("/generate", json={"inputs": inputs, "parameters": parameters})
    assert answer.status_code == 422
    return str(answer.json()["error"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
async def test_each_rule_is_named_alone(rule: tuple[str, dict[str, Any], str]) -> None:
    async with (
        housing(FakeShard(), checks=FakeChecks(lambda _: NOTHING)) as house,
        house.client as client,
    ):
        assert rule[2] in await refusal(client, rule[1])


async def test_of_two_broken_rules_the_first_is_named() -> None:
    wrong = []
    async with (
        housing(FakeShard(), checks=FakeChecks(lambda _: NOTHING)) as house,
        house.client as client,
    ):
        for first, second in PAIRS:
            error = await refusal(client, first[1], second[1])
            if first[2] not in error:
                wrong.append((first[0], second[0], error))

    assert wrong == []
