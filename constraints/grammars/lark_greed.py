"""What greedy terminals do to a grammar in Lark: rules that have no text, and bytes without an end.

A terminal cannot be followed by another one if, having ended, it could continue with every
character with which the other may begin. A rule is described by the pairs of terminals with which
its texts begin and end; a rule without such pairs has no text. The check is conservative.

    start: A "ab"      A: /a+/     behind `A` no `a` is left, so `"ab"` can never follow

Terminals are compared in pairs, and unknown constructs may follow and be followed by anything, so a
grammar that has a text is never reported.

There, nothing but another `a` can follow the terminal: bytes are forced without end, and the engine
would collect them without end. This needs a loop that always continues with the same byte; a loop
like `/[a-z]+/` always has a choice. Unknown constructs count as such loops: forced bytes are then
collected more carefully, which costs time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from constraints.grammars.lark_reader import Definition, Word, definitions, plain_name
from constraints.regex.char_sets import NUM_CODE_POINTS, Ranges, first_bytes
from constraints.regex.syntax import (
    Chars,
    Choice,
    Concat,
    Dialect,
    Empty,
    Pattern,
    Repeat,
    children,
    parse,
)

# Keywords whose numbers may have any number of trailing zeros and nothing else.
_NUMBER_BOUNDS = ("multipleOf", "inimum", "aximum")
# Words of a terminal: loops outside of patterns, and operators that restrict a pattern.
_LOOPS = frozenset("+*{")
_EXCLUSIONS = frozenset("&~")
_SURROGATES = (0xD800, 0xDFFF)
_DIGITS: Ranges = ((0x30, 0x39),)


def may_run_on(found: Sequence[Word]) -> bool:
    """Whether bytes may be forced without end; for a grammar whose patterns are valid."""
    return any(map(_word_may_run_on, found)) or any(map(_terminal_may_run_on, _terminals(found)))


def _terminals(found: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """The bodies of terminals; rules with attributes count as terminals."""
    for definition in definitions(found):
        if definition.name.kind == "terminal" or definition.has_attributes:
            yield definition.body


def _terminal_may_run_on(body: Sequence[Word]) -> bool:
    texts = {word.text for word in body}
    return not texts.isdisjoint(_LOOPS) or not texts.isdisjoint(_EXCLUSIONS)


def _word_may_run_on(word: Word) -> bool:
    if word.text == "%json":
        return any(keyword in json.dumps(word.value) for keyword in _NUMBER_BOUNDS)
    if word.kind == "regexp":
        pattern, _, flags = word.text[1:].rpartition("/")
        return _is_narrow(parse((f"(?{flags})" if flags else "") + pattern, Dialect.LARK))
    return word.text == "%regex"


def _is_narrow(pattern: Pattern) -> bool:
    """Whether some loop in it may continue with one byte only."""
    if isinstance(pattern, Chars):
        return not members(pattern)
    match pattern:
        case Repeat(part, _, None) if _begins(part).bit_count() < 2:
            return True
    return any(map(_is_narrow, children(pattern)))


def _begins(pattern: Pattern) -> int:
    """Bytes with which it can begin, as bits; possibly not all of them."""
    match pattern:
        case Chars():
            return first_bytes(members(pattern))
        case Concat(parts):
            return _begins(parts[0]) if parts else 0
        case Choice(options):
            found = 0
            for option in options:
                found |= _begins(option)
            return found
        case Repeat(part, _, max_count) if max_count != 0:
            return _begins(part)
        case _:
            return 0


def members(chars: Chars) -> Ranges:
    """Characters of a set; without those of named sets and of other letter cases."""
    if not chars.negated:
        # `\d` and `\w` contain all digits.
        has_digits = any(name.startswith("[") for name in chars.named)
        return _encodable((*chars.ranges, *(_DIGITS if has_digits else ())))
    if chars.named or chars.folded:
        return ()
    rest = []
    start = 0
    for first, last in sorted(chars.ranges):
        rest.append((start, first - 1))
        start = max(start, last + 1)
    return _encodable((*rest, (start, NUM_CODE_POINTS - 1)))


def _encodable(ranges: Ranges) -> Ranges:
    low, high = _SURROGATES
    pieces = [(first, min(last, low - 1)) for first, last in ranges]
    pieces += [(max(first, high + 1), last) for first, last in ranges]
    return tuple((first, last) for first, last in pieces if first <= last)


# Larger grammars are not checked.
_MAX_TERMINALS = 32
_MAX_WORDS = 600
_MAX_PLACES = 2_000
_EVERY: Ranges = ((0, NUM_CODE_POINTS - 1),)


class _NotUnderstood(Exception):
    """The grammar has a construct that this check does not handle."""


@dataclass(frozen=True, slots=True)
class _Edges:
    """A terminal: characters with which it may begin, and for each place where it may end, the
    characters with which it surely continues."""

    first: Ranges
    taken: frozenset[Ranges]
    may_be_empty: bool = False

    def may_precede(self, other: "_Edges") -> bool:
        return self.may_be_empty or any(not _covers(taken, other.first) for taken in self.taken)


_UNKNOWN = _Edges(_EVERY, frozenset({()}), may_be_empty=True)


def rules_without_text(found: Sequence[Word]) -> list[Word]:
    """The rules that `start` needs and that have no text; empty where that is unknown."""
    if len(found) > _MAX_WORDS:
        return []
    known = list(definitions(found))
    rules = {
        plain_name(each.name.text): each
        for each in known
        if each.name.kind == "rule" and not each.has_attributes
    }
    try:
        pairs = _Rules(found, known, rules).settled()
    except (_NotUnderstood, RecursionError):
        return []
    if "start" not in rules or pairs["start"]:
        return []
    return [rule.name for name, rule in rules.items() if not pairs[name]]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The terminals at the edges of a rule's texts: for each first one the last ones, as bits."""

    lasts: tuple[tuple[int, int], ...] = ()
    has_empty: bool = False

    def __bool__(self) -> bool:
        return self.has_empty or bool(self.lasts)

    def or_(self, other: "_Pairs") -> "_Pairs":
        lasts = dict(self.lasts)
        for first, last in other.lasts:
            lasts[first] = lasts.get(first, 0) | last
        return _Pairs(tuple(sorted(lasts.items())), self.has_empty or other.has_empty)


_EMPTY = _Pairs(has_empty=True)


@dataclass(slots=True)
class _Terminals:
    """The terminals of a grammar, numbered in order of appearance."""

    bodies: Mapping[str, Sequence[Word]]
    numbers: dict[str, int] = field(default_factory=dict)
    edges: list[_Edges] = field(default_factory=list)

    def number(self, word: Word, *, is_known: bool = True) -> int:
        name = word.text if is_known else ""
        if name not in self.numbers:
            if len(self.edges) == _MAX_TERMINALS:
                raise _NotUnderstood
            self.numbers[name] = len(self.edges)
            self.edges.append(self._edges(word) if is_known else _UNKNOWN)
        return self.numbers[name]

    def _edges(self, word: Word) -> _Edges:
        if word.kind == "terminal":
            body = self.bodies.get(word.text, ())
            word = body[0] if len(body) == 1 and body[0].kind != "terminal" else word
        if word.kind == "regexp":
            pattern, _, flags = word.text[1:].rpartition("/")
            return _edges_of((f"(?{flags})" if flags else "") + pattern)
        if word.kind == "string" and word.text.endswith('"') and word.text[1] not in '"\\':
            first = ord(word.text[1])
            return _Edges(((first, first),), frozenset({()}))
        return _UNKNOWN


class _Rules:
    """All rules, computed together since each depends on others."""

    def __init__(
        self, found: Sequence[Word], known: Sequence[Definition], rules: Mapping[str, Definition]
    ) -> None:
        self._rules = rules
        plain = [each for each in known if each.name.kind == "terminal" and not each.has_attributes]
        self._terminals = _Terminals({each.name.text: each.body for each in plain})
        self._pairs = dict.fromkeys(rules, _Pairs())
        self._ignored = 0
        for index, word in enumerate(found[:-1]):
            if word.text == "%ignore":
                self._ignored |= 1 << self._terminals.number(found[index + 1], is_known=False)
        self._body: Sequence[Word] = ()
        self._at = 0
        self._after: list[int] = []
        # The first round collects the terminals.
        for rule in rules.values():
            self._read(rule.body)
        self._after = self._followers()

    def settled(self) -> dict[str, _Pairs]:
        """The pairs of each rule."""
        is_settled = False
        while not is_settled:
            is_settled = True
            for name, rule in self._rules.items():
                pairs = self._read(rule.body).or_(self._pairs[name])
                is_settled = is_settled and pairs == self._pairs[name]
                self._pairs[name] = pairs
        return self._pairs

    def _followers(self) -> list[int]:
        """By terminal, those that may follow, as bits; all of them if the grammar ignores text."""
        edges = self._terminals.edges
        if self._ignored:
            return [(1 << len(edges)) - 1] * len(edges)
        return [
            sum(1 << index for index, other in enumerate(edges) if one.may_precede(other))
            for one in edges
        ]

    def _read(self, body: Sequence[Word]) -> _Pairs:
        self._body = body
        self._at = 0
        pairs = self._alternatives()
        if self._at < len(body):
            raise _NotUnderstood
        return pairs

    def _peek(self) -> str:
        return self._body[self._at].text if self._at < len(self._body) else ""

    def _alternatives(self) -> _Pairs:
        pairs = self._sequence()
        while self._peek() == "|":
            self._at += 1
            pairs = pairs.or_(self._sequence())
        return pairs

    def _sequence(self) -> _Pairs:
        pairs = _EMPTY
        while self._at < len(self._body) and self._peek() not in ("|", ")", "]"):
            pairs = self._joined(pairs, self._repeated(self._atom()))
        return pairs

    def _atom(self) -> _Pairs:
        word = self._body[self._at]
        self._at += 1
        if word.text in ("(", "["):
            pairs = self._alternatives()
            if self._peek() != {"(": ")", "[": "]"}[word.text]:
                raise _NotUnderstood
            self._at += 1
            return pairs.or_(_EMPTY) if word.text == "[" else pairs
        name = plain_name(word.text)
        if word.kind == "rule" and name in self._rules:
            return self._pairs[name]
        if word.kind in ("sign", "number"):
            raise _NotUnderstood
        number = self._terminals.number(word, is_known=self._peek() != "..")
        while self._peek() == "..":  # a range of characters
            self._at += 2
        return _Pairs(((number, 1 << number),))

    def _repeated(self, pairs: _Pairs) -> _Pairs:
        """The pairs with the repeats that follow; the maximum count is ignored."""
        while self._peek() in ("*", "+", "?", "~", "{"):
            sign = self._peek()
            self._at += 1
            min_count = 0 if sign in ("*", "?") else 1
            if sign in ("~", "{"):
                min_count = self._min_count()
            if sign != "?":
                pairs = self._closure(pairs)
            if not min_count:
                pairs = pairs.or_(_EMPTY)
        return pairs

    def _min_count(self) -> int:
        min_count = int(self._peek()) if self._peek().isdecimal() else 0
        while self._at < len(self._body) and (
            self._body[self._at].kind == "number" or self._peek() in (",", "..", "}")
        ):
            self._at += 1
        return min_count

    def _closure(self, pairs: _Pairs) -> _Pairs:
        before = _Pairs()
        while before != pairs:
            before = pairs
            pairs = pairs.or_(self._joined(pairs, pairs))
        return pairs

    def _joined(self, one: _Pairs, other: _Pairs) -> _Pairs:
        """The concatenation of two rules."""
        joined = _Pairs(
            other.lasts if one.has_empty else (), has_empty=one.has_empty and other.has_empty
        )
        if other.has_empty:
            joined = joined.or_(_Pairs(one.lasts))
        for first, last in one.lasts:
            after = self._after_any(last)
            ends = 0
            for begin, end in other.lasts:
                if after >> begin & 1:
                    ends |= end
            if ends:
                joined = joined.or_(_Pairs(((first, ends),)))
        return joined

    def _after_any(self, lasts: int) -> int:
        """The terminals that may follow one of these."""
        after = 0
        for number, followers in enumerate(self._after):
            if lasts >> number & 1:
                after |= followers
        return after


@dataclass(slots=True)
class _Part:
    """A part of a pattern: `first` has perhaps too many characters, `begins` perhaps too few.

    ends: by place where it may end, the characters with which it continues
    """

    first: Ranges
    begins: Ranges
    ends: list[list[tuple[int, int]]]
    may_be_empty: bool


def _edges_of(pattern: str) -> _Edges:
    part = _part(parse(pattern, Dialect.LARK), [_MAX_PLACES])
    if part.may_be_empty:
        return _UNKNOWN
    return _Edges(part.first, frozenset(tuple(end) for end in part.ends))


def _part(pattern: Pattern, left: list[int]) -> _Part:
    match pattern:
        case Empty():
            return _Part((), (), [], True)
        case Chars():
            left[0] -= 1
            if not left[0]:
                raise _NotUnderstood
            is_known = not pattern.named and not pattern.folded
            begins = members(pattern)
            return _Part(begins if is_known else _EVERY, begins, [[]], False)
        case Concat(parts):
            whole = _Part((), (), [], True)
            for each in parts:
                whole = _in_order(whole, _part(each, left))
            return whole
        case Choice(options):
            return _either([_part(option, left) for option in options])
        case Repeat(inner, min_count, max_count):
            return _repeated(_part(inner, left), min_count, max_count)
        case _:
            raise _NotUnderstood


def _in_order(one: _Part, other: _Part) -> _Part:
    for end in one.ends:
        end.extend(other.begins)
    return _Part(
        one.first + (other.first if one.may_be_empty else ()),
        one.begins + (other.begins if one.may_be_empty else ()),
        other.ends + (one.ends if other.may_be_empty else []),
        one.may_be_empty and other.may_be_empty,
    )


def _either(parts: list[_Part]) -> _Part:
    return _Part(
        sum([part.first for part in parts], ()),
        sum([part.begins for part in parts], ()),
        [end for part in parts for end in part.ends],
        any(part.may_be_empty for part in parts),
    )


def _repeated(part: _Part, min_count: int, max_count: int | None) -> _Part:
    if max_count == 0:
        return _Part((), (), [], True)
    if max_count is None:
        for end in part.ends:
            end.extend(part.begins)
    return _Part(part.first, part.begins, part.ends, part.may_be_empty or min_count == 0)


def _covers(ranges: Ranges, others: Ranges) -> bool:
    """Whether these characters include all the others."""
    for first, last in others:
        for low, high in sorted(ranges):
            if low <= first <= high:
                first = high + 1
        if first <= last:
            return False
    return True
