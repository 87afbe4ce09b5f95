"""Steps that were planned before the last one's answer: they drop, and pass over what has ended."""

import pytest

from constraints.spec import ConstraintSpec, Kind
from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.engine.sequences import PlannedChunk, SequenceState
from model_server.errors import InvalidStep
from model_server.executor.executor import PagedModel
from proto.contract import FinishReason, OutputConstraint, RunningUpdate, StopParams
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.shards import load, warmed_up
from tests.model_server.engine.test_runner import new, token_ids


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    return load(tiny_models.save("llama", tmp_path_factory.mktemp("llama")), World())


@pytest.fixture
def runner(model: PagedModel) -> Runner:
    return warmed_up(model)


class TestDroppedRequests:
    def test_they_leave_before_the_step(self, runner: Runner) -> None:
        runner.step([new(1), new(2), new(3)])
        output = runner.step(dropped_ids=(1, 3))
        assert (set(token_ids(output)), output.request_ids) == ({2}, (2,))

    def test_their_blocks_belong_to_who_enters_in_the_same_step(self, runner: Runner) -> None:
        alone = token_ids(runner.step([new(1)]))[1]
        heir = new(2, block_ids=(3, 4, 5))
        output = runner.step([heir], dropped_ids=(1,))
        assert (token_ids(output), output.request_ids) == ({2: alone}, (2,))

    def test_one_that_has_ended_is_passed_over(self, runner: Runner) -> None:
        runner.step([new(1), new(2, stop=StopParams(1))])
        assert runner.step(dropped_ids=(2,)).request_ids == (1,)

    def test_a_call_that_is_refused_drops_nobody(self, runner: Runner) -> None:
        runner.step([new(1), new(2)])
        with pytest.raises(InvalidStep, match="twice"):
            runner.step((), [RunningUpdate(2), RunningUpdate(2)], dropped_ids=(1,))
        assert runner.step().request_ids == (1, 2)


class TestWithoutRequests:
    """A step may have been sent before it was known that the last request ended before it."""

    def test_a_decode_computes_nothing(self, runner: Runner) -> None:
        ended = runner.step([new(1, stop=StopParams(1))])
        output = runner.step((), [RunningUpdate(1, (9,))])
        assert ended.generations[0].finish_reason is FinishReason.LENGTH
        assert (output.generations, output.request_ids, output.forward_ns) == ((), (), 0)

    def test_new_requests_come(self, runner: Runner) -> None:
        runner.step([new(1)])
        runner.step(dropped_ids=(1,))
        assert runner.step([new(2)]).request_ids == (2,)


@pytest.mark.parametrize(("chunk_len", "computed"), [(1, 1), (3, 3), (16, 3), (0, 0)])
def test_of_forced_tokens_a_step_computes_at_most_as_many_as_it_says(
    chunk_len: int, computed: int
) -> None:
    constraint = OutputConstraint(ConstraintSpec(Kind.REGEX, "a*"))
    sequence = SequenceState.of(new(1, constraint=constraint))
    sequence.computed_len, sequence.is_decoding = 20, True
    sequence.token_ids += (5, 6, 7)
    chunk = PlannedChunk.of(sequence, RunningUpdate(1, (), chunk_len), block_size=16)
    assert (chunk.chunk_len, chunk.samples) == (computed, computed == 3)
