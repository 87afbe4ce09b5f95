"""Normal forms of expressions, and contradictions that arithmetic alone finds.

    expression --to_nnf--> `not` only before atoms --disjuncts--> one of several conjunctions

It considers texts only if they are listed (X in [...]); automata find the conflicts of patterns and
phrases. Phrases are grouped, so that one automaton searches for all of them:

"a" in X or "b" in X            ContainsAny(a, b)
"a" not in X and "b" not in X   not ContainsAny(a, b)
X != "a" and X != "b"           X not in ["a", "b"]
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from constraints.errors import Contradiction, TooComplex, minimal_unsat_core
from constraints.where.evaluate import holds
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsInt,
    Matches,
    Measure,
    Not,
    OneOf,
    Or,
    Relation,
    StartsWith,
    StopsAt,
    all_of,
    any_of,
    text,
)


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from `low` to `high`, both included, without the `holes` within.

    None: no bound on that side. A count has none below 0.
    """

    low: int | None = None
    high: int | None = None
    holes: frozenset[int] = frozenset()

    @classmethod
    def of(cls, compare: Compare) -> "Interval":
        """The numbers that satisfy one comparison."""
        least = None if compare.measure is Measure.INT else 0
        bound = compare.bound
        match compare.relation:
            case Relation.LT:
                return cls(least, bound - 1)
            case Relation.LE:
                return cls(least, bound)
            case Relation.EQ:
                return cls(bound if least is None else max(bound, least), bound)
            case Relation.NE:
                return cls(least).meet(cls(holes=frozenset({bound})))
            case Relation.GE:
                return cls(bound if least is None else max(bound, least))
            case Relation.GT:
                return cls(bound + 1 if least is None else max(bound + 1, least))

    def meet(self, other: "Interval") -> "Interval":
        """The numbers in both."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        low = max(lows, default=None)
        high = min(highs, default=None)
        holes = set(self.holes | other.holes)
        while low is not None and low in holes:
            holes.remove(low)
            low += 1
        while high is not None and high in holes:
            holes.remove(high)
            high -= 1
        return Interval(low, high, frozenset(hole for hole in holes if _lies(low, hole, high)))

    @property
    def is_empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low > self.high

    def __contains__(self, number: int) -> bool:
        return _lies(self.low, number, self.high) and number not in self.holes

    def comparisons(self, measure: Measure) -> tuple[Compare, ...]:
        """Comparisons that are equivalent to this interval."""
        if self.low is not None and self.low == self.high:
            return (Compare(measure, Relation.EQ, self.low),)
        least = None if measure is Measure.INT else 0
        found = [Compare(measure, Relation.NE, hole) for hole in sorted(self.holes)]
        if self.high is not None:
            found.insert(0, Compare(measure, Relation.LE, self.high))
        if self.low is not None and self.low != least:
            found.insert(0, Compare(measure, Relation.GE, self.low))
        return tuple(found)


def _lies(low: int | None, number: int, high: int | None) -> bool:
    return (low is None or low <= number) and (high is None or number <= high)


_OPPOSITES = {
    Relation.LT: Relation.GE,
    Relation.LE: Relation.GT,
    Relation.EQ: Relation.NE,
    Relation.NE: Relation.EQ,
    Relation.GE: Relation.LT,
    Relation.GT: Relation.LE,
}
# Starts and ends that no text has.
_NOWHERE = frozenset({StartsWith(()), EndsWith(())})
# The most listed texts times conditions that are tried one by one.
_MAX_TRIALS = 10_000


def to_nnf(expression: Expression) -> Expression:
    """Negation normal form: `not` only before atoms that are no comparison and no constant.

    Nested conjunctions are flattened, duplicates and truth values removed (unless nothing else is
    left). Under `or`, lists of texts, of beginnings and of endings are joined: there may be
    hundreds.
    """
    match expression:
        case And(parts):
            return _conjunction(map(to_nnf, parts))
        case Or(parts):
            return _disjunction(map(to_nnf, parts))
        case Not(part):
            return _opposite(part)
        case _:
            return expression


def _opposite(expression: Expression) -> Expression:
    """The normal form of the negation."""
    match expression:
        case And(parts):
            return _disjunction(map(_opposite, parts))
        case Or(parts):
            return _conjunction(map(_opposite, parts))
        case Not(part):
            return to_nnf(part)
        case Constant(value):
            return Constant(not value)
        case Compare(Measure.INT, relation, bound):
            # A text that is no integer satisfies no comparison.
            return Or((Not(IsInt()), Compare(Measure.INT, _OPPOSITES[relation], bound)))
        case Compare(measure, relation, bound):
            return Compare(measure, _OPPOSITES[relation], bound)
        case _:
            return Not(expression)


def _conjunction(parts: Iterable[Expression]) -> Expression:
    flat = _flat(parts, And)
    if Constant(False) in flat:
        return Constant(False)
    return all_of(part for part in flat if part != Constant(True))


def _disjunction(parts: Iterable[Expression]) -> Expression:
    flat = _flat(parts, Or)
    if Constant(True) in flat:
        return Constant(True)
    return any_of(with_lists_joined(part for part in flat if part != Constant(False)))


def with_lists_joined(parts: Iterable[Expression]) -> list[Expression]:
    """The parts of an `or` with one list of each kind; these lists come first."""
    listed: dict[type[OneOf | StartsWith | EndsWith], dict[str, None]] = {}
    others: list[Expression] = []
    for part in parts:
        match part:
            case OneOf(texts) | StartsWith(texts) | EndsWith(texts):
                listed.setdefault(type(part), {}).update(dict.fromkeys(texts))
            case _:
                others.append(part)
    return [*(kind(tuple(texts)) for kind, texts in listed.items()), *others]


def _flat(parts: Iterable[Expression], joined: type[And] | type[Or]) -> dict[Expression, None]:
    """The flattened parts, each once, in their order."""
    found: dict[Expression, None] = {}
    for part in parts:
        found.update(dict.fromkeys(part.parts if isinstance(part, joined) else (part,)))
    return found


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Intervals of measures (each at most once), atoms that hold, and atoms that do not."""

    intervals: tuple[tuple[Measure, Interval], ...] = ()
    held: tuple[Expression, ...] = ()
    excluded: tuple[Expression, ...] = ()

    def interval(self, measure: Measure) -> Interval:
        found = dict(self.intervals).get(measure)
        if found is not None:
            return found
        return Interval() if measure is Measure.INT else Interval(low=0)

    @classmethod
    def of(cls, parts: Iterable["Conjunction"]) -> "Conjunction":
        """The conjunction of several."""
        intervals: dict[Measure, Interval] = {}
        held: dict[Expression, None] = {}
        excluded: dict[Expression, None] = {}
        for part in parts:
            for measure, interval in part.intervals:
                known = intervals.get(measure)
                intervals[measure] = interval if known is None else known.meet(interval)
            held.update(dict.fromkeys(part.held))
            excluded.update(dict.fromkeys(part.excluded))
        return cls(tuple(intervals.items()), tuple(held), tuple(excluded))

    def expression(self) -> Expression:
        """The same as an expression."""
        comparisons = (
            each for measure, interval in self.intervals for each in interval.comparisons(measure)
        )
        return all_of((*comparisons, *self.held, *map(Not, self.excluded)))

    @property
    def is_plainly_empty(self) -> bool:
        """Whether arithmetic shows that no text satisfies it; incomplete."""
        return self.excludes_itself or self._lists_nothing()

    @property
    def excludes_itself(self) -> bool:
        """The same without trying texts."""
        return (
            any(interval.is_empty for _, interval in self.intervals)
            or not set(self.held).isdisjoint(self.excluded)
            or self._compares_no_integer()
            or self._is_too_short()
        )

    def _compares_no_integer(self) -> bool:
        return IsInt() in self.excluded and Measure.INT in dict(self.intervals)

    def _is_too_short(self) -> bool:
        most = self.interval(Measure.CHARS).high
        return most is not None and most < max(self._min_chars(), default=0)

    def _min_chars(self) -> Iterator[int]:
        """The smallest numbers of characters that the other parts need, each on its own."""
        num_words = self.interval(Measure.WORDS).low or 0
        yield 2 * num_words - 1
        yield self.interval(Measure.SENTENCES).low or 0
        for atom in self.held:
            match atom:
                case Contains(phrase):
                    yield len(phrase)
                case StartsWith(phrases) | EndsWith(phrases) | OneOf(phrases) if phrases:
                    yield min(map(len, phrases))

    def _lists_nothing(self) -> bool:
        """Whether the texts are listed, and none of them satisfies the rest."""
        if not _NOWHERE.isdisjoint(self.held):
            return True
        lists = [set(atom.values) for atom in self.held if isinstance(atom, OneOf)]
        if not lists:
            return False
        listed = set.intersection(*lists)
        for atom in self.excluded:
            if isinstance(atom, OneOf):
                listed.difference_update(atom.values)
        rest = [part for part in _parts(self.expression()) if _can_be_tried(part)]
        if len(listed) * len(rest) > _MAX_TRIALS:
            return False
        return not any(all(holds(part, value) for part in rest) for value in listed)


def disjuncts(expression: Expression, max_disjuncts: int = 64) -> tuple[Conjunction, ...]:
    """The disjunctive normal form: conjunctions of which one holds if the expression does.

    Without those that are plainly empty; none left means that nothing satisfies it. Raises
    TooComplex for more than `max_disjuncts`, counted before removal.
    """
    found = _alternatives(to_nnf(expression), max_disjuncts)
    return tuple(each for each in found if not each.is_plainly_empty)


def _alternatives(normal: Expression, max_disjuncts: int) -> dict[Conjunction, None]:
    match normal:
        case Or(parts):
            found = (each for part in parts for each in _alternatives(part, max_disjuncts))
            return _bounded(found, max_disjuncts)
        case And(parts):
            # First the parts common to all alternatives at once: there may be hundreds.
            literals = [part for part in parts if not isinstance(part, Or)]
            common = Conjunction.of(each for literal in literals for each in _single(literal))
            product = _bounded(iter((common,)), max_disjuncts)
            for part in parts:
                if isinstance(part, Or):
                    others = _alternatives(part, max_disjuncts)
                    found = (Conjunction.of((one, other)) for one in product for other in others)
                    product = _bounded(found, max_disjuncts)
            return product
        case _:
            return _bounded(iter(_single(normal)), max_disjuncts)


def _bounded(found: Iterator[Conjunction], max_disjuncts: int) -> dict[Conjunction, None]:
    kept: dict[Conjunction, None] = {}
    for conjunction in found:
        if not conjunction.excludes_itself:
            kept[conjunction] = None
        if len(kept) > max_disjuncts:
            raise TooComplex(f"the expression has more than {max_disjuncts} alternatives")
    return kept


def _single(literal: Expression) -> tuple[Conjunction, ...]:
    match literal:
        case Constant(value):
            return (Conjunction(),) if value else ()
        case Compare(measure):
            return (Conjunction(intervals=((measure, Interval.of(literal)),)),)
        case Not(atom):
            return (Conjunction(excluded=(atom,)),)
        case _:
            return (Conjunction(held=(literal,)),)


def _parts(expression: Expression) -> tuple[Expression, ...]:
    return expression.parts if isinstance(expression, And) else (expression,)


def _can_be_tried(literal: Expression) -> bool:
    """Whether texts decide it: tokens are unknown, patterns may take unlimited time."""
    match literal:
        case Compare(Measure.TOKENS) | Matches() | Not(Matches()) | OneOf() | Not(OneOf()):
            return False
    return True


@dataclass(frozen=True, slots=True)
class ContainsAny:
    """At least one of the phrases occurs in the output. Internal: it has no syntax."""

    phrases: tuple[str, ...]


def group_phrases(expression: Expression) -> Expression:
    """The normal form with grouped phrases; some atoms are ContainsAny."""
    return _group_phrases(to_nnf(expression))


def _group_phrases(expression: Expression) -> Expression:
    match expression:
        case Or(parts):
            phrases = [part.phrase for part in parts if isinstance(part, Contains)]
            others = [_group_phrases(part) for part in parts if not isinstance(part, Contains)]
            return any_of([*_any_of_phrases(phrases), *others])
        case And(parts):
            return all_of(_grouped_conjunction(parts))
        case _:
            return expression


def _grouped_conjunction(parts: Sequence[Expression]) -> list[Expression]:
    excluded: list[str] = []
    lists: list[Expression] = []
    stops: list[str] = []
    others: list[Expression] = []
    for part in parts:
        match part:
            case Not(Contains(phrase)):
                excluded.append(phrase)
            case Not(OneOf() | StartsWith() | EndsWith() as atom):
                lists.append(atom)
            case StopsAt(phrases):
                stops.extend(phrases)
            case _:
                others.append(_group_phrases(part))
    none = [Not(each) for each in (*_any_of_phrases(excluded), *with_lists_joined(lists))]
    return [*others, *none, *([StopsAt(tuple(stops))] if stops else [])]


def _any_of_phrases(phrases: list[str]) -> list[Expression]:
    if len(phrases) < 2:
        return [Contains(phrase) for phrase in phrases]
    # Only the automata see it, as an atom like others.
    return [cast(Expression, ContainsAny(tuple(dict.fromkeys(phrases))))]


# Of more than these only the first are named in a message.
_MAX_NAMED = 20


def is_plainly_empty(expression: Expression) -> bool:
    """Whether arithmetic shows that nothing satisfies the expression; False if it does not."""
    try:
        return not disjuncts(expression)
    except TooComplex:
        return False


def conflicting(
    expression: Expression, is_empty: Callable[[Expression], bool | None]
) -> tuple[Expression, ...]:
    """A minimal set of parts that nothing satisfies together.

    expression: an unsatisfiable one
    is_empty:   called with some parts of the top-level conjunction; if it raises TooComplex, they
                count as satisfiable, if it returns None, it is not called again
    """
    return minimal_unsat_core(
        top_parts(expression), lambda parts: _is_surely(all_of(parts), is_empty)
    )


def contradiction(
    expression: Expression, is_empty: Callable[[Expression], bool | None]
) -> Contradiction:
    """The error for an expression that nothing satisfies."""
    return contradiction_of(conflicting(expression, is_empty))


def contradiction_of(conflict: Sequence[Expression]) -> Contradiction:
    """The error for expressions that nothing satisfies together."""
    parts = tuple(map(text, conflict))
    if len(parts) == 1:
        return Contradiction(f"nothing satisfies `{parts[0]}`", parts)
    if len(parts) > _MAX_NAMED:
        listed = ", ".join(f"`{part}`" for part in parts[:_MAX_NAMED])
        others = len(parts) - _MAX_NAMED
        return Contradiction(f"nothing satisfies all of {listed} and {others} others", parts)
    listed = ", ".join(f"`{part}`" for part in parts[:-1])
    return Contradiction(f"nothing satisfies both {listed} and `{parts[-1]}`", parts)


def top_parts(expression: Expression) -> tuple[Expression, ...]:
    """The parts of the top-level `and`, with chained comparisons split."""
    if not isinstance(expression, And):
        return (expression,)
    return tuple(part for joined in expression.parts for part in top_parts(joined))


def _is_surely(
    expression: Expression, is_empty: Callable[[Expression], bool | None]
) -> bool | None:
    if is_plainly_empty(expression):
        return True
    try:
        return is_empty(expression)
    except TooComplex:
        return False
