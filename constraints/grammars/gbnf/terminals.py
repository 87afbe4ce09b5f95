"""Splits a grammar of characters into terminals; the engine reads them greedily and loses no text.

The engine extends a terminal as long as any terminal that is legal there can continue, and never
backtracks. That loses no text if no terminal that has ended could also continue with a byte that
may follow it. So everything without recursion starts as one terminal, and greedy terminals are
split level by level; single characters are never greedy. If that is too much work, all are split.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from constraints.grammars.gbnf.greed import GrammarTooLarge, too_greedy
from constraints.grammars.gbnf.terms import (
    EMPTY,
    Alternation,
    CharSet,
    Repetition,
    Sequence,
    Term,
    Terminal,
    Text,
    choice,
    names,
    sequence,
)

_MAX_ROUNDS = 40


def split_terminals(rules: Mapping[str, Term], flat: Collection[str], root: str) -> dict[str, Term]:
    """The rules that `root` needs, in terms of terminals and names.

    flat: rules without recursion, which terminals may contain
    """
    found = _completed({}, rules, flat, root)
    if isinstance(found[root], Terminal):
        return found  # a single terminal: nothing follows it
    # If the search for greedy terminals is too expensive, every terminal becomes one character.
    with contextlib.suppress(GrammarTooLarge):
        for _ in range(_MAX_ROUNDS):
            wrong = too_greedy(found, rules, root)
            if not wrong:
                return found
            apart = {name: _split_greedy(term, wrong) for name, term in found.items()}
            found = _completed(apart, rules, flat, root)
    return _in_characters(rules, root)


def _completed(
    found: dict[str, Term], rules: Mapping[str, Term], flat: Collection[str], root: str
) -> dict[str, Term]:
    """`found` with the rules that are used outside of terminals, split as coarsely as possible."""
    return _reached(found, root, lambda name: _split(rules[name], flat))


def _in_characters(rules: Mapping[str, Term], root: str) -> dict[str, Term]:
    return _reached({}, root, lambda name: _split_characters(rules[name]))


def _reached(found: dict[str, Term], root: str, made: Callable[[str], Term]) -> dict[str, Term]:
    """The rules that `root` reaches; `made` makes those that are missing in `found`."""
    reached: dict[str, Term] = {}
    todo = [root]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached[name] = found[name] if name in found else made(name)
            todo.extend(each.name for each in names(reached[name]))
    return reached


def _split(term: Term, flat: Collection[str]) -> Term:
    if all(each.name in flat for each in names(term)):
        return _terminal(term)
    match term:
        case Sequence(parts):
            return sequence(_join_neighbours(parts, flat))
        case Alternation(options):
            whole = [each for each in options if _is_whole(each, flat)]
            others = [_split(each, flat) for each in options if not _is_whole(each, flat)]
            return choice([*([_terminal(choice(whole))] if whole else ()), *others])
        case Repetition(part, min_count, max_count):
            return Repetition(_split(part, flat), min_count, max_count)
        case _:
            return term


def _is_whole(term: Term, flat: Collection[str]) -> bool:
    return all(each.name in flat for each in names(term))


def _join_neighbours(parts: Iterable[Term], flat: Collection[str]) -> Iterator[Term]:
    """The parts, with neighbours without recursion joined to one terminal."""
    whole: list[Term] = []
    for part in parts:
        if _is_whole(part, flat):
            whole.append(part)
            continue
        yield _terminal(sequence(whole))
        whole.clear()
        yield _split(part, flat)
    yield _terminal(sequence(whole))


def _terminal(term: Term) -> Term:
    return term if term == EMPTY else Terminal(term)


def _split_greedy(term: Term, wrong: Collection[Terminal]) -> Term:
    """The term with these terminals split into their parts."""
    match term:
        case Terminal():
            return _parts(term.term) if term in wrong else term
        case Sequence(parts):
            return sequence(_split_greedy(part, wrong) for part in parts)
        case Alternation(options):
            return choice(_split_greedy(option, wrong) for option in options)
        case Repetition(part, min_count, max_count):
            return Repetition(_split_greedy(part, wrong), min_count, max_count)
        case _:
            return term


def _parts(term: Term) -> Term:
    match term:
        case Sequence(parts):
            return sequence(map(_terminal, parts))
        case Alternation(options):
            return choice(map(_terminal, options))
        case Repetition(part, min_count, max_count):
            return Repetition(_terminal(part), min_count, max_count)
        case Text(text):
            return sequence(Terminal(Text(char)) for char in text)
        case _:
            return term


def _split_characters(term: Term) -> Term:
    """The term with every character as a terminal of its own."""
    match term:
        case CharSet():
            return Terminal(term)
        case Text(text):
            return sequence(Terminal(Text(char)) for char in text)
        case Sequence(parts):
            return sequence(map(_split_characters, parts))
        case Alternation(options):
            return choice(map(_split_characters, options))
        case Repetition(part, min_count, max_count):
            return Repetition(_split_characters(part), min_count, max_count)
        case _:
            return term
