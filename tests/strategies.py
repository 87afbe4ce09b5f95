"""Hypothesis strategies and small values for the router's tests: worlds so small that sequences
collide, blocks run out and limits are met in almost every example."""

from hypothesis import strategies as st

from constraints.spec import ConstraintSpec, Kind
from router.request import (
    Constraint,
    GenerateRequest,
    LogprobParams,
    SamplingParams,
    StopParams,
)

VOCAB_SIZE = 2
ANY_TEXT = Constraint(ConstraintSpec(Kind.REGEX, "(?s:.*)"))


def make_request(
    prompt_ids: tuple[int, ...] = (0, 1, 0),
    max_new_tokens: int = 4,
    *,
    ignore_eos: bool = False,
    prompt_logprobs: bool = False,
    deadline_s: float | None = None,
    is_constrained: bool = False,
) -> GenerateRequest:
    """A greedy request whose text nobody reads."""
    return GenerateRequest(
        prompt_ids=prompt_ids,
        prompt_text="",
        sampling=SamplingParams(),
        stop=StopParams(max_new_tokens=max_new_tokens, ignore_eos=ignore_eos),
        logprobs=LogprobParams(prompt=prompt_logprobs),
        constraint=ANY_TEXT if is_constrained else None,
        deadline_s=deadline_s,
    )


def token_ids(min_len: int = 1, max_len: int = 12) -> st.SearchStrategy[tuple[int, ...]]:
    """Sequences over two letters."""
    return st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=min_len, max_size=max_len).map(tuple)


def requests(max_total_len: int) -> st.SearchStrategy[GenerateRequest]:
    """Requests of at most `max_total_len` (at least 2) tokens, prompt and output together.

    Half of them may fill that to the end, so that running ones fight for blocks.
    """

    def outputs(prompt_ids: tuple[int, ...]) -> st.SearchStrategy[GenerateRequest]:
        room = max_total_len - len(prompt_ids)
        return st.builds(
            make_request,
            st.just(prompt_ids),
            st.one_of(st.just(room), st.integers(1, room)),
            ignore_eos=st.booleans(),
            prompt_logprobs=st.sampled_from([False, False, False, True]),
            is_constrained=st.booleans(),
            deadline_s=st.one_of(st.none(), st.none(), st.integers(0, 40).map(float)),
        )

    return token_ids(1, max_total_len - 1).flatmap(outputs)
