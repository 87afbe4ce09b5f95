"""Makes the request of a hole, and evaluates the answer. Pure functions.

HoleReached -> HolePlan -> GenerateCall, or ScoreCall of a distribution
HoleAnswer -> Entry of the log, or Rejected
"""

from collections.abc import Sequence
from dataclasses import replace

from client.calls import GenerateCall, ScoreCall
from client.query.conditions import values as known
from client.query.conditions.bounds import names_of
from client.query.conditions.evaluate import evaluate
from client.query.conditions.plan import Check, HolePlan, StopMode
from client.query.conditions.planner import plan
from client.query.conditions.terms import Term, written
from client.query.errors import ProgramFailed, QueryError, Unsatisfiable
from client.query.reading.program_errors import locate, shortened
from client.query.running.decoding import FinishedHole, HoleAnswer, Options, Rejected
from client.query.running.execution import HoleReached, LogEntry
from client.query.running.transcript import prompt_of
from client.sampling import MAX_SEED


def plan_of(reached: HoleReached, options: Options, refused: tuple[str, ...]) -> HolePlan:
    """The plan of the hole's request. Raises Unsatisfiable, BadCondition."""
    terms = _terms(reached)
    try:
        if reached.hole.support is not None:
            return _plan_of_choice(reached, terms)
        return plan(
            terms,
            reached.hole.name,
            reached.hole.kind,
            reached.values,
            StopMode(options.stops),
            refused,
            is_decorated=bool(reached.hole.decorators),
        )
    except QueryError as error:
        locate(error, reached.hole.place, reached.source)
        raise


def _plan_of_choice(reached: HoleReached, terms: tuple[Term, ...]) -> HolePlan:
    """The plan for a distribution: no mask, only the conversion of values."""
    hole = reached.hole
    known = {reached.hole.name, *reached.values}
    read = plan((), hole.name, hole.kind, reached.values, StopMode.CUT)
    about = ((term, names_of(term)) for term in terms)
    return HolePlan(
        deferred=tuple(
            Check(term, names, written(term)) for term, names in about if not names <= known
        ),
        value=read.value,
    )


def _terms(reached: HoleReached) -> tuple[Term, ...]:
    """The hole's own conditions, and the checks deferred to it."""
    deferred = (check.term for check in reached.deferred_checks if reached.hole.name in check.names)
    return (*reached.terms, *(term for term in deferred if term not in reached.terms))


def generate_call(
    reached: HoleReached, plan: HolePlan, options: Options, index: int, log: Sequence[LogEntry]
) -> GenerateCall:
    """The request of a hole. Raises Unsatisfiable if `max_len` leaves no tokens."""
    seed = options.sampling.seed
    return GenerateCall(
        prompt=prompt_of(reached.prompt_parts),
        sampling=replace(
            options.sampling, seed=None if seed is None else (seed + index) & MAX_SEED
        ),
        max_tokens=_budget(reached, plan, options, log),
        constraint=plan.constraint,
        stop=plan.stop,
        keeps_stop=plan.keeps_stop,
    )


def _budget(
    reached: HoleReached, plan: HolePlan, options: Options, log: Sequence[LogEntry]
) -> int | None:
    bounds = [bound for bound in (plan.max_tokens, options.max_tokens) if bound is not None]
    if options.max_len is not None:
        left = options.max_len - sum(entry.finished.answer.num_tokens for entry in log)
        if left < 1 and reached.hole.support is None:
            what = f"max_len={options.max_len} tokens are spent before [{reached.hole.name}]"
            raise Unsatisfiable(what, reached.hole.place, reached.source)
        bounds.append(left)
    return min(bounds, default=None)


def score_call(reached: HoleReached, plan: HolePlan, refused: tuple[str, ...]) -> ScoreCall | None:
    """The request of a distribution: the values of its support that the hole's type and the
    conditions allow."""
    support = reached.hole.support
    if support is None:
        return None
    left = [text for text in dict.fromkeys(support) if text not in refused]
    values = tuple(text for text in left if _is_allowed(reached, plan, text))
    if not values:
        what = f"no value of the distribution over [{reached.hole.name}] is allowed"
        if not support:
            what = f"the distribution over [{reached.hole.name}] has no values"
        raise Unsatisfiable(what, reached.hole.place, reached.source)
    return ScoreCall(prompt=prompt_of(reached.prompt_parts), values=values)


def _is_allowed(reached: HoleReached, plan: HolePlan, text: str) -> bool:
    try:
        value = _read(reached, plan, text)
    except Rejected:
        return False
    made = known.Finished(value, text, has_tokens=False)
    values = {**reached.values, reached.hole.name: made}
    try:
        return all(evaluate(term, values) is not False for term in _terms(reached))
    except QueryError as error:
        locate(error, reached.hole.place, reached.source)
        raise


def entry_of(reached: HoleReached, plan: HolePlan, answer: HoleAnswer) -> LogEntry:
    """The log entry of the answer. Raises Rejected if a check fails."""
    hole = reached.hole
    source = reached.source
    value = _read(reached, plan, answer.text)
    made = known.Finished(value, answer.text, answer.num_tokens)
    values = {**reached.values, hole.name: made}
    for check in plan.checks:
        try:
            truth = evaluate(check.term, values)
        except QueryError as error:
            locate(error, hole.place, source)
            raise
        if truth is False:
            what = f"`{check.text}` does not hold: [{hole.name}] is {shortened(value)}"
            raise Rejected(what, answer.text, value, hole.place, source)
    return LogEntry(
        finished=FinishedHole(name=hole.name, answer=answer, value=value),
        prompt_before=reached.prompt_parts,
        value=plan.value,
        deferred_checks=_left(reached, plan),
    )


def _left(reached: HoleReached, plan: HolePlan) -> tuple[Check, ...]:
    """The checks deferred to holes behind this one."""
    others = (check for check in reached.deferred_checks if reached.hole.name not in check.names)
    return (*others, *plan.deferred)


def _read(reached: HoleReached, plan: HolePlan, text: str) -> object:
    """The value. A ValueError of the type rejects the text; other errors are bugs of the type."""
    hole = reached.hole
    source = reached.source
    what = f"[{hole.name}] cannot be read from {shortened(text)}"
    try:
        return plan.value(text)
    except ValueError as error:
        raise Rejected(f"{what}: {error}", text, text, hole.place, source) from error
    except Exception as error:
        said = f": {error}" if str(error) else ""
        message = f"{what}: {type(error).__name__}{said}"
        raise ProgramFailed(message, hole.place, source) from error
