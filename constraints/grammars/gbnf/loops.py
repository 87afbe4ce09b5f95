"""Finds rules that need no stack: those without recursion, or with recursion at one end only.

ws ::= ([ \\t] ws)?     is    ws ::= [ \\t]*
list ::= x | list "," x is    list ::= x ("," x)*
"""

from collections.abc import Mapping

from constraints.grammars.definition_graph import closure
from constraints.grammars.gbnf.terms import (
    EMPTY,
    Alternation,
    Name,
    Repetition,
    Sequence,
    Term,
    choice,
    names,
    sequence,
)

# The term beside the rule's own name, and the term without the name; None: there is none.
_Split = tuple[Term | None, Term | None]
# The most characters of a rule within a terminal, with all its rules written out.
_MAX_SIZE = 2000


def as_loop(name: str, term: Term) -> Term:
    """The rule's term as a loop, if its own name occurs at one end only; else unchanged."""
    if all(each.name != name for each in names(term)):
        return term
    for is_right in (True, False):
        split = _split_ends(name, term, is_right)
        if split is None:
            continue
        around, rest = split
        if around is not None and rest is not None:
            loop = Repetition(around, 0, None)
            return sequence((loop, rest) if is_right else (rest, loop))
    return term


def _split_ends(name: str, term: Term, is_right: bool) -> _Split | None:
    """None if the name occurs elsewhere than at that end."""
    if all(each.name != name for each in names(term)):
        return None, term
    match term:
        case Name():
            return EMPTY, None
        case Sequence(parts):
            edge, others = (parts[-1], parts[:-1]) if is_right else (parts[0], parts[1:])
            if any(each.name == name for part in others for each in names(part)):
                return None
            inner = _split_ends(name, edge, is_right)
            if inner is None:
                return None
            around, rest = (_beside(others, part, is_right) for part in inner)
            return around, rest
        case Alternation(options):
            return _split_end_options(name, options, is_right)
        case Repetition(part, 0, 1):
            return _split_end_options(name, (part, EMPTY), is_right)
        case _:
            return None


def _split_end_options(name: str, options: tuple[Term, ...], is_right: bool) -> _Split | None:
    splits = [_split_ends(name, option, is_right) for option in options]
    found = [split for split in splits if split is not None]
    if len(found) < len(splits):
        return None
    around = [part for part, _ in found if part is not None]
    rest = [part for _, part in found if part is not None]
    return choice(around) if around else None, choice(rest) if rest else None


def _beside(others: tuple[Term, ...], part: Term | None, is_right: bool) -> Term | None:
    if part is None:
        return None
    return sequence((*others, part) if is_right else (part, *others))


def rules_without_stack(rules: Mapping[str, Term]) -> set[str]:
    """The rules that reach no recursive rule and are not too large when written out."""
    mentions = {
        name: list(dict.fromkeys(each.name for each in names(term))) for name, term in rules.items()
    }
    sizes: dict[str, int] = {}

    def is_flat(name: str, known: set[str]) -> bool:
        if not known.issuperset(mentions[name]):
            return False
        sizes[name] = _size(rules[name], sizes)
        return sizes[name] <= _MAX_SIZE

    return closure(mentions, is_flat)


def _size(term: Term, sizes: Mapping[str, int]) -> int:
    match term:
        case Name(name):
            return sizes[name]
        case Sequence(parts) | Alternation(parts):
            return sum(_size(part, sizes) for part in parts)
        case Repetition(part):
            return _size(part, sizes)
        case _:
            return len(getattr(term, "text", "."))
