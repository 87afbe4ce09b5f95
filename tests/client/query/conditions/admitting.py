"""Which texts a HolePlan lets a server write, by the meaning of what is asked for."""

import re
from collections.abc import Mapping

from client.calls import Constraint
from client.query.conditions.evaluate import evaluate
from client.query.conditions.plan import Check, HolePlan
from client.query.conditions.values import Finished
from constraints.where.evaluate import holds as server_holds
from constraints.where.parser import parse


def admits(plan: HolePlan, text: str, num_tokens: int) -> bool:
    """Whether a hole may have this text: as it stays in the prompt."""
    if plan.max_tokens is not None and num_tokens > plan.max_tokens:
        return False
    if plan.constraint is not None and not _is_legal(plan.constraint, text, num_tokens):
        return False
    return not plan.stop or _is_ended(plan, text)


def _is_legal(constraint: Constraint, text: str, num_tokens: int) -> bool:
    match constraint:
        case Constraint("choice", list(values)):
            return text in values
        case Constraint("regex", str(pattern)):
            return re.fullmatch(pattern, text) is not None
        case Constraint("where", str(clause)):
            return server_holds(parse(clause), text, num_tokens)
    raise AssertionError(constraint)


def _is_ended(plan: HolePlan, text: str) -> bool:
    """Whether a server that ends at the first stop string may have shown this."""
    for output in (text, *(text + phrase for phrase in plan.stop)):
        shown = output
        ends = [output.find(phrase) + len(phrase) for phrase in plan.stop if phrase in output]
        if ends and min(ends) < len(output):
            continue
        if ends and not plan.keeps_stop:
            found = (phrase for phrase in plan.stop if output.endswith(phrase))
            shown = output[: -max(map(len, found))]
        if plan.prompt_text(shown) == text:
            return True
    return False


def all_hold(checks: tuple[Check, ...], holes: Mapping[str, Finished]) -> bool:
    """Whether every check holds; all holes in them are finished."""
    truths = [evaluate(check.term, holes) for check in checks]
    assert None not in truths
    return all(truths)
