"""Compiles an expression: machine, slacks, byte table; locates contradictions."""

from time import thread_time

import numpy as np

from constraints.errors import Contradiction, TooComplex
from constraints.guiding.alphabet import alphabet_of
from constraints.regex.char_sets import utf8_of
from constraints.regex.limits import OutOfReach
from constraints.token_trie import TokenTrie
from constraints.vocabulary import Vocabulary
from constraints.where.counter_grid import CounterGrid, Slacks, coaccessible_slacks
from constraints.where.distances import is_within
from constraints.where.engine import WhereLanguage
from constraints.where.machine import Machine, build, counter_of, minimised, with_stop_phrases
from constraints.where.normal_form import conflicting, contradiction_of, top_parts
from constraints.where.plain_space import ClosingSpace, named_space, without_control_space
from constraints.where.terms import (
    Expression,
    Measure,
    StopsAt,
    StopsBefore,
    all_of,
)
from constraints.where.token_transitions import ByteTable

# The most CPU seconds for finding which parts contradict each other.
_MAX_CONFLICT_S = 0.5


def compile_where(
    expression: Expression,
    vocabulary: Vocabulary,
    trie: TokenTrie | None = None,
    *,
    is_plain: bool = False,
) -> WhereLanguage:
    """The language of an expression.

    trie:   the vocabulary's; building it takes about half a second for 128 000 tokens
    is_plain: masks bring no white space into a text that the model would not write, see
            `plain_space`; such texts there have to be
    Raises Contradiction, TooComplex and, for another engine to try, OutOfReach.
    """
    trie = trie or TokenTrie(vocabulary)
    began = thread_time()
    language = _plain_language(expression, vocabulary, trie) if is_plain else None
    language = language or _language(expression, vocabulary, trie)
    if language is None:

        def is_empty(part: Expression) -> bool | None:
            if thread_time() - began > _MAX_CONFLICT_S:
                return None
            return _is_empty(part, vocabulary, trie)

        raise _contradiction(conflicting(expression, is_empty), vocabulary)
    return language


def compile_without_stops(
    language: WhereLanguage, strings: tuple[str, ...]
) -> WhereLanguage | None:
    """The language of the texts that no stop string truncates. None: there are none.

    They may end with one. Raises TooComplex and OutOfReach.
    """
    wanted = all_of((language.expression, StopsAt(strings)))
    return _language(wanted, language.vocabulary, language.trie)


def _contradiction(conflict: tuple[Expression, ...], vocabulary: Vocabulary) -> Contradiction:
    """The error for expressions that exclude each other."""
    error = contradiction_of(conflict)
    if _cannot_be_spelled(all_of(conflict), vocabulary):
        what = "the model has no tokens that spell such a text"
        return Contradiction(f"{error}: {what}", error.parts)
    return error


def _plain_language(
    expression: Expression,
    vocabulary: Vocabulary,
    trie: TokenTrie,
) -> WhereLanguage | None:
    """None if there are no such texts, or too much to follow."""
    plain = without_control_space(expression)
    try:
        return _language(plain, vocabulary, trie, named_space(expression))
    except (OutOfReach, TooComplex):
        return None


def _language(
    expression: Expression,
    vocabulary: Vocabulary,
    trie: TokenTrie,
    kept_space: frozenset[str] | None = None,
) -> WhereLanguage | None:
    """None if nothing satisfies the expression.

    kept_space: white space that may close a complete text; None: all
    """
    machine = _machine(expression)
    # Characters without a step from any state need no places for their bytes.
    utf8 = utf8_of(machine.partition, np.any(machine.steps, axis=0))
    counter_grid = CounterGrid.of(machine)
    accepted = _accepted(machine, counter_grid)
    by_state = _coaccessible_slacks(machine, counter_grid, accepted)
    if by_state is None:
        return None
    table = ByteTable.of(machine, utf8, trie.max_token_len)
    closing_space = None
    if kept_space is not None and counter_of(Measure.WORDS, expression) is not None:
        closing_space = ClosingSpace.of(
            vocabulary, machine, counter_grid, table, by_state, kept_space
        )
    language = WhereLanguage(
        vocabulary=vocabulary,
        trie=trie,
        machine=machine,
        counter_grid=counter_grid,
        table=table,
        accepted=tuple(table.accepted(slacks) for slacks in accepted),
        coaccessible_slacks=table.spread(machine, counter_grid, by_state),
        expression=expression,
        dropped=_dropped(expression),
        closing_space=closing_space,
    )
    if not language.follows_bytes:
        start = table.start // table.width
        if not is_within(
            counter_grid, language.slacks(0, None), start, [0] * len(machine.counters)
        ):
            return None
    return language


def _coaccessible_slacks(
    machine: Machine, counter_grid: CounterGrid, accepted: tuple[Slacks, ...]
) -> Slacks | None:
    """Slacks of all states, computed over characters; None if the start state is dead."""
    slacks = coaccessible_slacks(machine, counter_grid, np.maximum.reduce(accepted))
    is_alive = is_within(counter_grid, slacks, machine.start, [0] * len(machine.counters))
    return slacks if is_alive else None


def _machine(expression: Expression) -> Machine:
    phrases = _dropped(expression)
    machine = minimised(build(_without_stops(expression)))
    return minimised(with_stop_phrases(machine, phrases)) if phrases else machine


def _accepted(machine: Machine, counter_grid: CounterGrid) -> tuple[Slacks, ...]:
    """Slacks with which the expression holds now, for each segment of tokens."""
    return tuple(
        counter_grid.accepted(machine, machine.accepts[..., segment])
        for segment in range(machine.accepts.shape[-1])
    )


def _dropped(expression: Expression) -> tuple[str, ...]:
    """The phrases of all stops_before."""
    stops = (part for part in top_parts(expression) if isinstance(part, StopsBefore))
    return tuple(dict.fromkeys(phrase for stop in stops for phrase in stop.phrases))


def _without_stops(expression: Expression) -> Expression:
    """What must hold of the text without the dropped phrase."""
    return all_of(part for part in top_parts(expression) if not isinstance(part, StopsBefore))


def _is_empty(expression: Expression, vocabulary: Vocabulary, trie: TokenTrie) -> bool:
    """Whether nothing satisfies the expression; False if this engine cannot decide it."""
    try:
        counts_tokens = counter_of(Measure.TOKENS, expression) is not None
        if counts_tokens or not alphabet_of(vocabulary).spells_utf8:
            return _language(expression, vocabulary, trie) is None
        return _is_empty_in_bytes(expression)
    except OutOfReach:
        return False


def _cannot_be_spelled(expression: Expression, vocabulary: Vocabulary) -> bool:
    """Whether an unsatisfiable expression has texts, but none that tokens can spell."""
    try:
        return not (alphabet_of(vocabulary).spells_utf8 or _is_empty_in_bytes(expression))
    except (OutOfReach, TooComplex):
        return False


def _is_empty_in_bytes(expression: Expression) -> bool:
    """As `_is_empty`, over bytes: tokens are neither counted nor spelled. Raises OutOfReach."""
    machine = _machine(expression)
    counter_grid = CounterGrid.of(machine)
    return _coaccessible_slacks(machine, counter_grid, _accepted(machine, counter_grid)) is None
