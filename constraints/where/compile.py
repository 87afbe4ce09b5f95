"""From an expression to a language: machine, reserves, table; and what contradicts what."""

from time import thread_time

import numpy as np

from constraints.errors import Contradiction, TooComplex
from constraints.guiding.alphabet import alphabet_of
from constraints.token_trie import TokenTrie
from constraints.vocabulary import Vocabulary
from constraints.where.byte_table import ByteTable
from constraints.where.coaccessible import live_reserves
from constraints.where.conflict import conflicting, contradiction_of, top_parts
from constraints.where.counter_grid import CounterGrid, Reserves
from constraints.where.distances import is_within
from constraints.where.engine import WhereLanguage
from constraints.where.error_position import short
from constraints.where.limits import OutOfReach
from constraints.where.machine import Machine, build
from constraints.where.measures import axis_of
from constraints.where.pattern_pieces import impossible_pieces
from constraints.where.reduction import reduced
from constraints.where.stopping import stopping
from constraints.where.terms import (
    Contains,
    Expression,
    Matches,
    Measure,
    Not,
    StopsAt,
    StopsBefore,
    all_of,
)
from constraints.where.utf8 import Utf8, utf8_of

# After so much computing no more is tried to find out which parts contradict each other.
_MAX_BLAME_S = 0.5
# Pieces of one pattern that are shown.
_MAX_PIECES = 4
# How much room a counter grid is tried with, the last one without a base.
SPARES: tuple[int | None, ...] = (24, 96, 384, None)


def compile_where(
    expression: Expression,
    vocabulary: Vocabulary,
    walk: TokenTrie | None = None,
    *,
    spares: tuple[int | None, ...] = SPARES,
) -> WhereLanguage:
    """The language of an expression.

    walk: the vocabulary's, made anew where it is not given (about half a second for 128 000 tokens)
    spares: how much room a counter grid leaves below its bounds, tried one after the other until
    it is
            enough; None is always enough, and all masks are the same
    Raises Contradiction, TooComplex and, for another engine to try, OutOfReach.
    """
    walk = walk or TokenTrie(vocabulary)
    began = thread_time()
    language = _language(expression, vocabulary, walk, spares)
    if language is None:

        def is_empty(part: Expression) -> bool | None:
            if thread_time() - began > _MAX_BLAME_S:
                return None
            return _is_empty(part, vocabulary, walk)

        raise _contradiction(conflicting(expression, is_empty), vocabulary)
    return language


def uncut_by(
    language: WhereLanguage, strings: tuple[str, ...], *, kept: bool
) -> WhereLanguage | None:
    """The texts of a language of which stop strings cut nothing. None: there are none.

    kept: a text may end with one
    Raises TooComplex and OutOfReach.
    """
    without_stop_strings = (
        (StopsAt(strings),) if kept else tuple(Not(Contains(string)) for string in strings)
    )
    wanted = all_of((language.expression, *without_stop_strings))
    return _language(wanted, language.vocabulary, language.walk, SPARES)


def _contradiction(conflict: tuple[Expression, ...], vocabulary: Vocabulary) -> Contradiction:
    """The error for expressions that nothing satisfies together; of a pattern alone, its piece."""
    error = contradiction_of(conflict)
    if _cannot_be_spelled(all_of(conflict), vocabulary):
        what = "the model has no tokens that spell such a text"
        return Contradiction(f"{error}: {what}", error.parts)
    match conflict:
        case (Matches(pattern),):
            pieces = [short(pattern[start:end]) for start, end in impossible_pieces(pattern)]
            listed = " and ".join(f"`{piece}`" for piece in pieces[:_MAX_PIECES])
            return Contradiction(f"{error}: nothing matches {listed}", error.parts)
    return error


def _language(
    expression: Expression,
    vocabulary: Vocabulary,
    walk: TokenTrie,
    spares: tuple[int | None, ...],
) -> WhereLanguage | None:
    """None if nothing satisfies the expression."""
    machine = _machine(expression)
    # Characters that lead nowhere from any state need no place inside of them.
    utf8 = utf8_of(machine.partition, np.any(machine.steps, axis=0))
    for spare in spares:
        counter_grid = CounterGrid.of(machine, spare)
        language = _on_lattice(machine, utf8, counter_grid, vocabulary, walk, expression)
        if language is None or language.distances is None or language.distances.has_room:
            break
    return language


def _on_lattice(
    machine: Machine,
    utf8: Utf8,
    counter_grid: CounterGrid,
    vocabulary: Vocabulary,
    walk: TokenTrie,
    expression: Expression,
) -> WhereLanguage | None:
    accepted = _accepted(machine, counter_grid)
    live = _live(machine, counter_grid, accepted)
    if live is None:
        return None
    table = ByteTable.of(machine, utf8, walk.max_token_len)
    language = WhereLanguage(
        vocabulary=vocabulary,
        walk=walk,
        machine=machine,
        counter_grid=counter_grid,
        table=table,
        accepted=tuple(table.accepted(reserves) for reserves in accepted),
        live=table.spread(machine, counter_grid, live),
        expression=expression,
        dropped=_dropped(expression),
    )
    if not language.follows_bytes:
        start = table.start // table.width
        if not is_within(
            counter_grid, language.reserves(0, None), start, [0] * len(machine.counters)
        ):
            return None
    return language


def _live(
    machine: Machine, counter_grid: CounterGrid, accepted: tuple[Reserves, ...]
) -> Reserves | None:
    """Reserves of all states, as far as characters can tell; None if the start has none."""
    live = live_reserves(machine, counter_grid, np.maximum.reduce(accepted))
    is_alive = is_within(counter_grid, live, machine.start, [0] * len(machine.counters))
    return live if is_alive else None


def _machine(expression: Expression) -> Machine:
    phrases = _dropped(expression)
    machine = reduced(build(_without_stops(expression)))
    return reduced(stopping(machine, phrases)) if phrases else machine


def _accepted(machine: Machine, counter_grid: CounterGrid) -> tuple[Reserves, ...]:
    """Reserves of holding now, for each segment of tokens."""
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


def _is_empty(expression: Expression, vocabulary: Vocabulary, walk: TokenTrie) -> bool:
    """Whether nothing satisfies the expression; False where that is out of reach."""
    try:
        counts_tokens = axis_of(Measure.TOKENS, expression) is not None
        if counts_tokens or not alphabet_of(vocabulary).spells_utf8:
            return _language(expression, vocabulary, walk, SPARES) is None
        return _is_empty_in_bytes(expression)
    except OutOfReach:
        return False


def _cannot_be_spelled(expression: Expression, vocabulary: Vocabulary) -> bool:
    """Of what nothing satisfies, whether some text would that tokens cannot spell."""
    try:
        return not (alphabet_of(vocabulary).spells_utf8 or _is_empty_in_bytes(expression))
    except (OutOfReach, TooComplex):
        return False


def _is_empty_in_bytes(expression: Expression) -> bool:
    """The same, however many tokens there are and whatever they can spell. Raises OutOfReach."""
    machine = _machine(expression)
    counter_grid = CounterGrid.of(machine, SPARES[0])
    return _live(machine, counter_grid, _accepted(machine, counter_grid)) is None
