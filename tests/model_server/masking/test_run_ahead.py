"""Constrained rows need their token on the host: no step is launched behind theirs."""

from pathlib import Path

import pytest

from constraints.spec import Kind
from proto.contract import SamplingParams
from tests.model_server.engine.ahead_driver import AheadDriver
from tests.model_server.engine.driver import Driver
from tests.model_server.masking.shard import NUM_BLOCKS, Shard, of, save

DATE = of(Kind.REGEX, "[0-9]{4}-[0-9]{2}-[0-9]{2}( at [a-z]+)?")
COLOUR = of(Kind.CHOICE, '["crimson red", "crimson blue", "deep ocean green", "white"]')


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return Shard.load(save(Path(tmp_path_factory.mktemp("model"))))


@pytest.mark.parametrize("seed", range(3))
def test_constrained_and_free_requests_get_the_tokens_that_they_get_step_by_step(
    shard: Shard, seed: int
) -> None:
    drivers = (
        AheadDriver(shard.runner(runs_ahead=True), NUM_BLOCKS, shard.model.block_size, seed),
        Driver(shard.runner(), NUM_BLOCKS, shard.model.block_size, seed),
    )
    for driver in drivers:
        for request_id, constraint in enumerate((DATE, None, COLOUR, None)):
            driver.add(
                request_id,
                range(300 + request_id, 310 + request_id),
                12 + 20 * (request_id % 2),
                sampling=SamplingParams(do_sample=True, temperature=1.5, seed=seed + request_id),
                constraint=constraint,
            )
        driver.run()
    ahead, step_by_step = drivers
    assert isinstance(ahead, AheadDriver)
    assert ahead.outputs == step_by_step.outputs
    # Once the constrained ones have ended, the others are free to.
    assert ahead.num_ahead > 5
