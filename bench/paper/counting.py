"""What is counted of one query, as the paper counts it and as a server bills it.

The paper's words, for a baseline and a program alike:

    generate() calls   decoding processes that were started; each scored option is one
    model queries      tokens asked of the model: generated ones, and those of scored options
    billable tokens    over all calls: tokens of the prompt and tokens generated

A program is one decoding process there, however many holes it has: its runtime goes on with what
was computed. Here a hole is a request of its own, which sends the whole prompt, and the server's
prefix cache finds what was computed. So both are counted: `as_program` is the paper's way, `Counts`
of every request as it was sent is the other.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums over calls; `num_requests` is what went over the wire."""

    num_calls: float = 0
    num_queries: float = 0
    billable_tokens: float = 0
    num_requests: float = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            num_calls=self.num_calls + other.num_calls,
            num_queries=self.num_queries + other.num_queries,
            billable_tokens=self.billable_tokens + other.billable_tokens,
            num_requests=self.num_requests + other.num_requests,
        )

    def per(self, num_cases: int) -> "Counts":
        """The mean over cases."""
        return Counts(
            num_calls=self.num_calls / num_cases,
            num_queries=self.num_queries / num_cases,
            billable_tokens=self.billable_tokens / num_cases,
            num_requests=self.num_requests / num_cases,
        )


def total(counts: Iterable[Counts]) -> Counts:
    """The sum."""
    return sum(counts, Counts())


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One request for tokens: lengths of its prompt and of what was generated, in tokens.

    `kept_len`: how many tokens the part of it is that stays in the prompt; the end token and what
    is cut behind a stop phrase do not. `chunk`: how many tokens were asked for, of a baseline.
    """

    prompt_len: int
    output_len: int
    kept_len: int
    chunk: int | None = None

    @property
    def in_full(self) -> "Generated":
        """The same, had the model not ended its text within the chunk."""
        return replace(self, output_len=self.chunk or self.output_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredOptions:
    """One request for log-probabilities: the prompt's length and each option's, in tokens."""

    prompt_len: int
    option_lens: tuple[int, ...]


Request = Generated | ScoredOptions


def as_sent(requests: Iterable[Request]) -> Counts:
    """Every request is a call, and bills its whole prompt."""
    return total(_of_request(request) for request in requests)


def in_full_chunks(requests: Iterable[Request]) -> Counts:
    """`as_sent` of a model that never ends a text, as GPT-J hardly does: each chunk is whole.

    All that an end saves is behind the answer, so that nothing else of a run would change.
    """
    return as_sent(each.in_full if isinstance(each, Generated) else each for each in requests)


def as_program(requests: Iterable[Request]) -> Counts:
    """The requests of one program are one decoding process, which bills its prompt once.

        prompt of the last request, less the values in it | everything generated for the values

    Each scored option is a call beside it.
    """
    sent = tuple(requests)
    generated = [request for request in sent if isinstance(request, Generated)]
    options = total(_of_request(r) for r in sent if isinstance(r, ScoredOptions))
    if not generated:
        return options
    last = generated[-1]
    fixed_len = last.prompt_len - sum(request.kept_len for request in generated[:-1])
    num_queries = sum(request.output_len for request in generated)
    return options + Counts(
        num_calls=1,
        num_queries=num_queries,
        billable_tokens=fixed_len + num_queries,
        num_requests=len(generated),
    )


def _of_request(request: Request) -> Counts:
    match request:
        case Generated(prompt_len=prompt_len, output_len=output_len):
            return Counts(
                num_calls=1,
                num_queries=output_len,
                billable_tokens=prompt_len + output_len,
                num_requests=1,
            )
        case ScoredOptions(prompt_len=prompt_len, option_lens=option_lens):
            return Counts(
                num_calls=len(option_lens),
                num_queries=sum(option_lens),
                billable_tokens=prompt_len * len(option_lens) + sum(option_lens),
                num_requests=1,
            )
