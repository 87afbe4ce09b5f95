"""Compiles an expression: machine, slacks, byte table; locates contradictions."""

from time import thread_time

import numpy as np

from constraints.errors import Contradiction, TooComplex
from constraints.guiding.alphabet import alphabet_of
from constraints.regex.char_sets import utf8_of
from constraints.regex.limits import OutOfReach
from constraints.token_trie import TokenTrie
from constraints.vocabulary import Vocabulary
from constraints.where.counter_grid import CounterGrid, is_empty
from constraints.where.engine import WhereLanguage
from constraints.where.evaluate import dropped_phrases
from constraints.where.machine import counter_of, machine_of
from constraints.where.normal_form import conflicting, contradiction_of
from constraints.where.plain_space import ClosingSpace, named_space, without_control_space
from constraints.where.terms import Expression, Measure, StopsAt, all_of
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

        def excludes_itself(part: Expression) -> bool | None:
            if thread_time() - began > _MAX_CONFLICT_S:
                return None
            return _has_no_output(part, vocabulary, trie)

        raise _contradiction(conflicting(expression, excludes_itself), vocabulary)
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
    machine = machine_of(expression)
    # Characters without a step from any state need no places for their bytes.
    utf8 = utf8_of(machine.partition, np.any(machine.steps, axis=0))
    counter_grid = CounterGrid.of(machine)
    by_state = counter_grid.coaccessible(machine)
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
        accepted=tuple(table.accepted(slacks) for slacks in counter_grid.accepted(machine)),
        coaccessible_slacks=table.spread(machine, counter_grid, by_state),
        expression=expression,
        dropped_phrases=dropped_phrases(expression),
        closing_space=closing_space,
    )
    if not language.follows_bytes:
        start = table.start // table.width
        if not counter_grid.is_within(language.slacks(0, None), start, [0] * len(machine.counters)):
            return None
    return language


def _has_no_output(expression: Expression, vocabulary: Vocabulary, trie: TokenTrie) -> bool:
    """Whether no tokens spell what satisfies it; False if this engine cannot decide it."""
    try:
        counts_tokens = counter_of(Measure.TOKENS, expression) is not None
        if counts_tokens or not alphabet_of(vocabulary).spells_utf8:
            return _language(expression, vocabulary, trie) is None
        return is_empty(expression)
    except (OutOfReach, TooComplex):
        return False


def _cannot_be_spelled(expression: Expression, vocabulary: Vocabulary) -> bool:
    """Whether an unsatisfiable expression has texts, but none that tokens can spell."""
    try:
        return not (alphabet_of(vocabulary).spells_utf8 or is_empty(expression))
    except (OutOfReach, TooComplex):
        return False
