"""Which rules need no stack: those that do not lead to themselves, or only from one of their ends.

ws ::= ([ \\t] ws)?     is    ws ::= [ \\t]*
list ::= x | list "," x is    list ::= x ("," x)*
"""

from collections.abc import Mapping

from constraints.grammars.chains import closure
from constraints.grammars.gbnf.terms import (
    EMPTY,
    Choice,
    Name,
    Repeat,
    Sequence,
    Term,
    choice,
    names,
    sequence,
)

# What stands beside a rule's own name, and what stands without it; None: there is no such thing.
_Split = tuple[Term | None, Term | None]
# Characters in a rule that is to be part of a terminal, its own rules written out.
_MAX_SIZE = 2000


def unrolled(name: str, term: Term) -> Term:
    """The rule's term without its own name, where that stands at one end only; else as it is."""
    if all(each.name != name for each in names(term)):
        return term
    for is_right in (True, False):
        split = _split(name, term, is_right)
        if split is None:
            continue
        around, rest = split
        if around is not None and rest is not None:
            loop = Repeat(around, 0, None)
            return sequence((loop, rest) if is_right else (rest, loop))
    return term


def _split(name: str, term: Term, is_right: bool) -> _Split | None:
    """None where the name stands elsewhere than at the end."""
    if all(each.name != name for each in names(term)):
        return None, term
    match term:
        case Name():
            return EMPTY, None
        case Sequence(parts):
            edge, others = (parts[-1], parts[:-1]) if is_right else (parts[0], parts[1:])
            if any(each.name == name for part in others for each in names(part)):
                return None
            inner = _split(name, edge, is_right)
            if inner is None:
                return None
            around, rest = (_beside(others, part, is_right) for part in inner)
            return around, rest
        case Choice(options):
            return _split_options(name, options, is_right)
        case Repeat(part, 0, 1):
            return _split_options(name, (part, EMPTY), is_right)
        case _:
            return None


def _split_options(name: str, options: tuple[Term, ...], is_right: bool) -> _Split | None:
    splits = [_split(name, option, is_right) for option in options]
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


def flat_rules(rules: Mapping[str, Term]) -> set[str]:
    """The rules that lead to no rule that leads to itself, and are not too large written out."""
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
        case Sequence(parts) | Choice(parts):
            return sum(_size(part, sizes) for part in parts)
        case Repeat(part):
            return _size(part, sizes)
        case _:
            return len(getattr(term, "text", "."))
