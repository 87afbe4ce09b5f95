"""Cuts a grammar of characters into terminals, which the engine reads greedily, and loses no text.

The engine reads a terminal up to where no terminal that may stand there can go on, and never looks
back. That changes nothing as long as no terminal that has ended could also go on with a byte that
may follow it. So everything without recursion begins as one terminal, and those that break the rule
are taken apart, level by level; single characters never do. Where that is too much work, all are.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from constraints.grammars.gbnf.greed import TooMuch, too_greedy
from constraints.grammars.gbnf.terms import (
    EMPTY,
    Chars,
    Choice,
    Repeat,
    Sequence,
    Term,
    Terminal,
    Text,
    choice,
    names,
    sequence,
)

_MAX_ROUNDS = 40


def cut(rules: Mapping[str, Term], flat: Collection[str], root: str) -> dict[str, Term]:
    """The rules that `root` needs, of terminals, names, and what joins them.

    flat: rules without recursion, which may be parts of terminals
    """
    found = _completed({}, rules, flat, root)
    if isinstance(found[root], Terminal):
        return found  # nothing follows it
    # Where it would be too much to look for greed, no terminal is long enough to be greedy.
    with contextlib.suppress(TooMuch):
        for _ in range(_MAX_ROUNDS):
            wrong = too_greedy(found, rules, root)
            if not wrong:
                return found
            apart = {name: _taken_apart(term, wrong) for name, term in found.items()}
            found = _completed(apart, rules, flat, root)
    return _in_characters(rules, root)


def _completed(
    found: dict[str, Term], rules: Mapping[str, Term], flat: Collection[str], root: str
) -> dict[str, Term]:
    """With the rules that are mentioned outside of terminals, cut as coarsely as can be."""
    return _reached(found, root, lambda name: _cut(rules[name], flat))


def _in_characters(rules: Mapping[str, Term], root: str) -> dict[str, Term]:
    return _reached({}, root, lambda name: _apart(rules[name]))


def _reached(found: dict[str, Term], root: str, made: Callable[[str], Term]) -> dict[str, Term]:
    """The rules that `root` leads to, those that are not there yet as they are `made`."""
    reached: dict[str, Term] = {}
    todo = [root]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached[name] = found[name] if name in found else made(name)
            todo.extend(each.name for each in names(reached[name]))
    return reached


def _cut(term: Term, flat: Collection[str]) -> Term:
    if all(each.name in flat for each in names(term)):
        return _terminal(term)
    match term:
        case Sequence(parts):
            return sequence(_cut_neighbours(parts, flat))
        case Choice(options):
            whole = [each for each in options if _is_whole(each, flat)]
            others = [_cut(each, flat) for each in options if not _is_whole(each, flat)]
            return choice([*([_terminal(choice(whole))] if whole else ()), *others])
        case Repeat(part, least, most):
            return Repeat(_cut(part, flat), least, most)
        case _:
            return term


def _is_whole(term: Term, flat: Collection[str]) -> bool:
    return all(each.name in flat for each in names(term))


def _cut_neighbours(parts: Iterable[Term], flat: Collection[str]) -> Iterator[Term]:
    """Neighbours without recursion as one terminal."""
    whole: list[Term] = []
    for part in parts:
        if _is_whole(part, flat):
            whole.append(part)
            continue
        yield _terminal(sequence(whole))
        whole.clear()
        yield _cut(part, flat)
    yield _terminal(sequence(whole))


def _terminal(term: Term) -> Term:
    return term if term == EMPTY else Terminal(term)


def _taken_apart(term: Term, wrong: Collection[Terminal]) -> Term:
    """The same with these terminals in their parts."""
    match term:
        case Terminal():
            return _parts(term.term) if term in wrong else term
        case Sequence(parts):
            return sequence(_taken_apart(part, wrong) for part in parts)
        case Choice(options):
            return choice(_taken_apart(option, wrong) for option in options)
        case Repeat(part, least, most):
            return Repeat(_taken_apart(part, wrong), least, most)
        case _:
            return term


def _parts(term: Term) -> Term:
    match term:
        case Sequence(parts):
            return sequence(map(_terminal, parts))
        case Choice(options):
            return choice(map(_terminal, options))
        case Repeat(part, least, most):
            return Repeat(_terminal(part), least, most)
        case Text(text):
            return sequence(Terminal(Text(char)) for char in text)
        case _:
            return term


def _apart(term: Term) -> Term:
    """Every character a terminal of its own."""
    match term:
        case Chars():
            return Terminal(term)
        case Text(text):
            return sequence(Terminal(Text(char)) for char in text)
        case Sequence(parts):
            return sequence(map(_apart, parts))
        case Choice(options):
            return choice(map(_apart, options))
        case Repeat(part, least, most):
            return Repeat(_apart(part), least, most)
        case _:
            return term
