"""Every family that is known answers as generate() does, by recipe or in its class, or is refused.

One that is read now, or served now, has to change its place in the census.
"""

import re
from pathlib import Path

import pytest

from model_server.engine.distributed import World
from model_server.errors import ArchitectureUnfit
from tests.model_server import census
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import driver_of, load

NUM_NEW = 12
PROMPT_LENS = (5, 41, 18)
REASONS = {name: reason for reason, names in census.IN_ITS_CLASS.items() for name in names}
REFUSALS = {name: reason for reason, names in census.REFUSED.items() for name in names}


def _prompt(index: int, length: int) -> list[int]:
    """Tokens that look like no other prompt's."""
    return [(index * 31 + position * 17 + 7) % 150 + 3 for position in range(length)]


@pytest.mark.nightly
@pytest.mark.parametrize("name", census.SERVED)
def test_one_that_is_served_answers_as_generate_does(name: str, tmp_path: Path) -> None:
    reference = tiny_models.of_config(census.SERVED[name]())
    prompts = [_prompt(index, length) for index, length in enumerate(PROMPT_LENS)]
    expected = [tiny_models.greedy(reference, prompt, NUM_NEW) for prompt in prompts]
    # A model that repeats itself would be equal whatever it was asked.
    assert sum(len(set(tokens)) for tokens in expected) > NUM_NEW
    reference.save_pretrained(tmp_path)
    model = load(tmp_path, World())
    if name in REASONS:
        assert model.fallback_reason is not None
        assert re.search(REASONS[name], model.fallback_reason)
    else:
        assert model.fallback_reason is None
    for step_tokens in (7, 64):
        driver = driver_of(model)
        for index, prompt in enumerate(prompts):
            driver.add(index, prompt, NUM_NEW)
        driver.run(step_tokens)
        assert list(driver.outputs.values()) == expected


@pytest.mark.nightly
@pytest.mark.parametrize("name", REFUSALS)
def test_one_that_is_refused_says_why(name: str, tmp_path: Path) -> None:
    configs = census.REFUSED[REFUSALS[name]]
    tiny_models.of_config(configs[name]()).save_pretrained(tmp_path)
    with pytest.raises(ArchitectureUnfit, match=REFUSALS[name]) as refusal:
        load(tmp_path, World())
    assert "cannot be served" in str(refusal.value)
