"""A constraint whose masks come late, on a real engine: its text is as ever, and nobody waits."""

import time
from collections.abc import Callable

from constraints.spec import Kind
from launcher import BUNDLED_MODEL
from model_server.masking.constraint_cache import ConstraintCache
from proto.contract import LogprobParams, SamplingParams, StopParams
from router.request.request import Constraint, GenerateRequest
from tests.integration.engine import Engine, Told, running_engine
from tests.model_server.masking.shard import FAULTY, FaultyLanguages

SAMPLED = SamplingParams(do_sample=True, temperature=0.9, seed=7)
SLOW_S = 0.03


def slowly(languages: ConstraintCache) -> ConstraintCache:
    return FaultyLanguages(languages, lambda: time.sleep(SLOW_S), 1)


def asking(engine: Engine, text: str, *, is_slow: bool = False) -> GenerateRequest:
    assert FAULTY.spec.kind is Kind.REGEX
    return GenerateRequest(
        prompt_ids=tuple(engine.tokenizer.encode(text)),
        prompt_text=text,
        sampling=SAMPLED,
        stop=StopParams(16, ignore_eos=not is_slow),
        logprobs=LogprobParams(prompt=True),
        constraint=Constraint(FAULTY.spec, is_quick=True) if is_slow else None,
    )


async def told(
    followed: Callable[[ConstraintCache], ConstraintCache],
) -> tuple[list[Told], float | None]:
    """What a slow request and two others are told, and how many draws were late."""
    async with running_engine(BUNDLED_MODEL, followed=followed) as engine:
        requests = [
            asking(engine, "The old man said: ", is_slow=True),
            asking(engine, "Once upon a time"),
            asking(engine, "The weather was"),
        ]
        answers = await engine.told_all(requests)
        return answers, engine.registry.get_sample_value("tandem_late_rows_total")


async def test_late_masks_change_no_answer() -> None:
    slow, num_late = await told(slowly)
    quick, _ = await told(lambda languages: languages)
    assert num_late
    for late, ever in zip(slow, quick, strict=True):
        assert (late.token_ids, late.logprobs, late.pieces) == (
            ever.token_ids,
            ever.logprobs,
            ever.pieces,
        )
        assert late.prompt == ever.prompt
        assert late.end.reason is ever.end.reason
