r"""Which tokens are legal, found by searching: the judge of the engine's masks.

    oracle = Oracle(expression, tokens, end_ids)
    oracle.legal(prefix)             ids that may follow the ids in `prefix`, end tokens included
    oracle.legal(prefix, max_len=5)  of these, what can be completed within so many tokens
    oracle.is_complete(prefix)  | oracle.shortest_len(prefix, at_most)

A place in an output is the state of every atom's automaton, the bytes of a character that has only
begun, and how many tokens there were. Every atom is a pattern, or what a pattern does not match.
Characters which no atom tells apart are tried only once. From each place completions are searched
for: by characters, and where tokens are counted, some byte is none or there is a budget by tokens,
of what can be completed by characters at all.

Written to be believed, for vocabularies of a few hundred tokens and bounds of a few dozen. Nothing
is shared with the engine or with the evaluator but the automata of patterns, which are held against
Python's `re` where they are made (regex/test_dfa.py) and, with all else here, in test_oracle.py.
"""

import codecs
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from constraints.regex.dfa import Automaton, matches
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    Not,
    OneOf,
    Or,
    Relation,
    StartsWith,
    StopsAt,
    StopsBefore,
)
from constraints.where.terms import (
    text as text_of,
)

SURROGATES = (0xD800, 0xE000)
# After these not every continuation byte may follow.
SPECIAL_LEADS = (b"\xe0", b"\xed", b"\xf0", b"\xf4")


class Alphabet:
    """One character of every kind that the atoms tell apart."""

    def __init__(self, automata: Sequence[Automaton], phrases: Sequence[str]) -> None:
        """phrases: those of stops_before, which are looked for as they are."""
        bounds = {bound for char in "".join(phrases) for bound in (ord(char), ord(char) + 1)}
        self._named = sorted(bounds | {0, *SURROGATES})
        self._partitions = [automaton.partition for automaton in automata]
        starts = {int(start) for each in self._partitions for start in each.starts}
        self._starts = sorted(starts.union(self._named))
        kinds: dict[Hashable, str] = {}
        self._likes = [kinds.setdefault(self._kind(start), chr(start)) for start in self._starts]
        self._tails: dict[Hashable, bytes] = {}

    def _kind(self, code_point: int) -> Hashable:
        labels = [each.label_of(code_point) for each in self._partitions]
        return bisect_right(self._named, code_point), *labels

    def like(self, char: str) -> str:
        """The character that stands for this one."""
        return self._likes[bisect_right(self._starts, ord(char)) - 1]

    def beginning_with(self, tail: bytes) -> list[str]:
        """One character of every kind whose UTF-8 begins with these bytes."""
        first, last = code_points(tail)
        low = bisect_right(self._starts, first) - 1
        high = bisect_right(self._starts, last)
        likes = dict.fromkeys(self._likes[low:high])
        return [like for like in likes if not SURROGATES[0] <= ord(like) < SURROGATES[1]]

    def like_tail(self, tail: bytes) -> bytes:
        """The begun character that stands for this one: of one kind, completed by any bytes."""
        likes = self.beginning_with(tail) if tail else []
        if len(likes) != 1 or tail in SPECIAL_LEADS:
            return tail
        return self._tails.setdefault((likes[0], _length(tail[0]) - len(tail)), tail)

    def meaning(self, token: bytes) -> Hashable:
        """Equal for tokens that mean the same where a character begins."""
        split = characters(token)
        return None if split is None else ("".join(map(self.like, split[0])), split[1])


def characters(data: bytes) -> tuple[str, bytes] | None:
    """The complete characters, and the bytes of one that has begun; None for what is no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(data)
    except UnicodeDecodeError:
        return None
    return text, decoder.getstate()[0]


def code_points(tail: bytes) -> tuple[int, int]:
    """The first and the last code point whose UTF-8 begins with these bytes."""
    if not tail:
        return 0, 0x10FFFF
    lead = tail[0]
    length = _length(lead)
    least, most = {2: (0x80, 0x7FF), 3: (0x800, 0xFFFF), 4: (0x10000, 0x10FFFF)}[length]
    bits = lead & (0xFF >> (length + 1))
    for byte in tail[1:]:
        bits = bits << 6 | byte & 0x3F
    open_bits = 6 * (length - len(tail))
    return max(bits << open_bits, least), min(((bits + 1) << open_bits) - 1, most)


def _length(lead: int) -> int:
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def pattern_of(atom: Expression) -> tuple[str, bool]:
    """A pattern, and whether the atom holds for what it matches or for all else."""
    match atom:
        case Compare(Measure.INT, relation, bound):
            return _integers(relation, bound), True
        case Compare(measure, relation, bound):
            counts = range(max(bound, 0) + 2)
            met = [count for count in counts if related(count, relation, bound)]
            options = [_counted(measure, count, is_least=count == counts[-1]) for count in met]
            return _any_of(options), True
        case Matches(pattern):
            return pattern, True
        case IsInt():
            return "-?[0-9]+", True
        case IsFloat():
            return r"-?[0-9]+(\.[0-9]+)?", True
        case Contains(phrase):
            return f"(?s:.*){re.escape(phrase)}(?s:.*)", True
        case OneOf(values):
            return _any_of(map(re.escape, values)), True
        case StartsWith(phrases):
            return _any_of(map(re.escape, phrases)) + "(?s:.*)", True
        case EndsWith(phrases):
            return "(?s:.*)" + _any_of(map(re.escape, phrases)), True
        case StopsAt(phrases):
            return f"(?s:.*){_any_of(map(re.escape, phrases))}(?s:.+)", False
    raise TypeError(atom)


def _any_of(options: Iterable[str]) -> str:
    several = tuple(options)
    return f"(?:{'|'.join(several)})" if several else r"[^\s\S]"


def related(count: int, relation: Relation, bound: int) -> bool:
    return {
        Relation.LT: count < bound,
        Relation.LE: count <= bound,
        Relation.EQ: count == bound,
        Relation.NE: count != bound,
        Relation.GE: count >= bound,
        Relation.GT: count > bound,
    }[relation]


def _counted(measure: Measure, count: int, *, is_least: bool) -> str:
    """The texts of so many characters, words or sentences, or of so many at least."""
    more = "(?s:.*)" if is_least else ""
    if count == 0:
        return more or (r"\s*" if measure is Measure.WORDS else "")
    before = count - 1
    match measure:
        case Measure.CHARS:
            return f"(?s:.{{{count}}}){more}"
        case Measure.WORDS:
            return rf"\s*(?:\S+\s+){{{before}}}\S" + (more or r"\S*\s*")
    return rf"(?:[^.]*\.){{{before}}}(?:[^.]*\.|[^.]+){more}"


def _integers(relation: Relation, bound: int) -> str:
    """What is beyond the bound on either side has the relation of the next number there."""
    most = abs(bound) + 1
    below = "|".join(map(str, range(most)))
    options = []
    for value in range(-most, most + 1):
        size = str(abs(value))
        if abs(value) == most:
            size = rf"(?!(?:{below})\Z)[1-9][0-9]*"
        if related(value, relation, bound):
            options.append(("-0*" if value < 0 else "0*" if value > 0 else "-?0*") + size)
    return _any_of(options)


def longest_beginning(text: str, phrases: tuple[str, ...]) -> str:
    """The longest end of the text with which a phrase begins."""
    while not any(phrase.startswith(text) for phrase in phrases) and text:
        text = text[1:]
    return text


_BYTES = frozenset(bytes([byte]) for byte in (*range(0xC0), *range(0xC2, 0xF5)))


@dataclass(frozen=True)
class Joint:
    """The automata side by side, and how far a phrase of stops_before has come.

    states:   of the automata, in their order, after the whole text
    begun:    the longest end of the text that begins a phrase
    earlier:  the states before each character of `begun`
    is_ended: a phrase ended the text; `states` are those before the phrase
    """

    states: tuple[int, ...]
    begun: str = ""
    earlier: tuple[tuple[int, ...], ...] = ()
    is_ended: bool = False


@dataclass(frozen=True)
class Place:
    """Where an output stands.

    joint:      None where a text that was ended goes on
    tail:       the first bytes of a character that is not complete
    num_tokens: up to just beyond the largest bound
    """

    joint: Joint | None
    tail: bytes
    num_tokens: int


class Oracle:
    def __init__(
        self, expression: Expression, tokens: Sequence[bytes], end_ids: Sequence[int]
    ) -> None:
        self._expression = expression
        self._leaves = tuple(dict.fromkeys(_leaves(expression)))
        bounds = [
            leaf.bound
            for leaf in self._leaves
            if isinstance(leaf, Compare) and leaf.measure is Measure.TOKENS
        ]
        stops = [leaf for leaf in self._leaves if isinstance(leaf, StopsBefore)]
        self._phrases = tuple(phrase for stop in stops for phrase in stop.phrases)
        self._atoms = [leaf for leaf in self._leaves if needs_automaton(leaf)]
        patterns = list(map(pattern_of, self._atoms))
        self._automata = [matches(pattern) for pattern, _ in patterns]
        self._is_match = [is_match for _, is_match in patterns]
        self._alphabet = Alphabet(self._automata, self._phrases)
        self._tokens = tokens
        self.end_ids = tuple(end_ids)
        self._most_tokens = max([0, *bounds]) + 1
        # Where every byte is a token, what characters can complete tokens can, too.
        self.follows_tokens = bool(bounds) or not set(tokens) >= _BYTES
        self._steps: dict[tuple[Joint, str], Joint | None] = {}
        self._within: dict[tuple[Place, int], bool] = {}
        self._moves: dict[Place, tuple[Place, ...]] = {}
        self._by_characters = Search(self._ways_by_character, self._accepts_for_some_count)
        self._by_tokens = Search(self._ways_by_token, self._accepts)
        # Tokens that mean the same to this expression are tried only once.
        self._distinct = list({self._alphabet.meaning(token): token for token in tokens}.values())
        self._continuing = [token for token in tokens if token and 0x80 <= token[0] < 0xC0]

    def legal(self, prefix: Sequence[int], max_len: int | None = None) -> frozenset[int]:
        """The tokens that may follow."""
        place = self.place(prefix)
        ends = self.end_ids if self._accepts(place) else ()
        verdicts: dict[Place | None, bool] = {None: False}
        legal = set(ends)
        for token_id, token in enumerate(self._tokens):
            if not token or token_id in self.end_ids:
                continue
            after = self._after(place, token)
            if after not in verdicts and after is not None:
                verdicts[after] = self._can_be_completed(after, max_len)
            if verdicts[after]:
                legal.add(token_id)
        return frozenset(legal)

    def is_inside(self, prefix: Sequence[int]) -> bool:
        """What was made so far ends inside of a character."""
        return self.place(prefix).tail != b""

    def is_complete(self, prefix: Sequence[int]) -> bool:
        """What was made so far satisfies the expression."""
        return self._accepts(self.place(prefix))

    def shortest_len(self, prefix: Sequence[int], at_most: int) -> int | None:
        """The fewest further tokens that satisfy the expression; None: more than `at_most`."""
        place = self.place(prefix)
        return next((n for n in range(at_most + 1) if self._completes_within(place, n)), None)

    def place(self, prefix: Sequence[int]) -> Place:
        """Where an output of these tokens stands; they must be legal UTF-8 so far."""
        place = Place(Joint((0,) * len(self._automata)), b"", 0)
        for token_id in prefix:
            after = self._after(place, self._tokens[token_id])
            assert after is not None, "the prefix is no UTF-8"
            place = after
        return place

    def _can_be_completed(self, after: Place, max_len: int | None) -> bool:
        if max_len is not None:
            return max_len >= 1 and self._completes_within(after, max_len - 1)
        if not self._by_characters.is_live(after):
            return False
        return not self.follows_tokens or self._by_tokens.is_live(after)

    def _after(self, place: Place, token: bytes) -> Place | None:
        """The place after a token; None where its bytes cannot be part of a text."""
        split = characters(place.tail + token)
        if split is None:
            return None
        text, tail = split
        joint = place.joint
        for char in text:
            joint = self._step(joint, self._alphabet.like(char))
        num_tokens = min(place.num_tokens + 1, self._most_tokens)
        return Place(joint, self._alphabet.like_tail(tail), num_tokens)

    def _step(self, joint: Joint | None, char: str) -> Joint | None:
        if joint is None or joint.is_ended:
            return None
        key = (joint, char)
        if key not in self._steps:
            self._steps[key] = self._stepped(joint, char)
        return self._steps[key]

    def _stepped(self, joint: Joint, char: str) -> Joint:
        text, earlier = joint.begun + char, (*joint.earlier, joint.states)
        ended = [phrase for phrase in self._phrases if text.endswith(phrase)]
        if ended:
            return Joint(earlier[len(text) - max(map(len, ended))], is_ended=True)
        states = tuple(
            int(automaton.steps[state, automaton.partition.label_of(ord(char))])
            for automaton, state in zip(self._automata, joint.states, strict=True)
        )
        begun = longest_beginning(text, self._phrases)
        return Joint(states, begun, earlier[len(text) - len(begun) :])

    def _accepts(self, place: Place) -> bool:
        if place.tail or place.joint is None:
            return False
        return self._value(self._expression, place.joint.states, place.num_tokens)

    def _value(self, expression: Expression, states: tuple[int, ...], num_tokens: int) -> bool:
        match expression:
            case And(parts):
                return all(self._value(part, states, num_tokens) for part in parts)
            case Or(parts):
                return any(self._value(part, states, num_tokens) for part in parts)
            case Not(part):
                return not self._value(part, states, num_tokens)
            case Constant(value):
                return value
            case StopsBefore():
                return True
            case Compare(Measure.TOKENS, relation, bound):
                return related(num_tokens, relation, bound)
        index = self._atoms.index(expression)
        return bool(self._automata[index].accepts[states[index]]) is self._is_match[index]

    def _accepts_for_some_count(self, place: Place) -> bool:
        counts = range(self._most_tokens + 1)
        return any(self._accepts(replace(place, num_tokens=count)) for count in counts)

    def _completes_within(self, place: Place, max_len: int) -> bool:
        """Whether at most so many tokens satisfy the expression."""
        key = (place, max_len)
        if key not in self._within:
            self._within[key] = self._accepts(place) or (
                max_len > 0
                and any(
                    self._completes_within(further, max_len - 1)
                    for further in self._ways_by_token(place)
                )
            )
        return self._within[key]

    def _ways_by_character(self, place: Place) -> Iterator[Place]:
        for char in self._alphabet.beginning_with(place.tail):
            yield Place(self._step(place.joint, char), b"", 0)

    def _ways_by_token(self, place: Place) -> tuple[Place, ...]:
        if place not in self._moves:
            tokens = self._continuing if place.tail else self._distinct
            ways = (self._after(place, token) for token in tokens if token)
            self._moves[place] = tuple(
                way
                for way in dict.fromkeys(ways)
                if way is not None and self._by_characters.is_live(way)
            )
        return self._moves[place]


class PlainOracle(Oracle):
    """As the masks that bring no white space into a text that the expression does not name.

    Control characters of white space are legal where nothing else is; and a complete text is over
    where only white space could follow.
    """

    def __init__(
        self, expression: Expression, tokens: Sequence[bytes], end_ids: Sequence[int]
    ) -> None:
        super().__init__(expression, tokens, end_ids)
        # An escape may name one of them, in a phrase or in a pattern.
        may_name = re.search(r"\\[xuUN0-7vf]", text_of(expression)) is not None
        controls = () if may_name else tuple(bytes([byte]) for byte in b"\x0b\x0c\x1c\x1d\x1e\x1f")
        self._controls = frozenset(
            token_id
            for token_id, token in enumerate(tokens)
            if any(char in token for char in controls)
        )
        self._counts_words = any(
            isinstance(leaf, Compare) and leaf.measure is Measure.WORDS for leaf in self._leaves
        )

    def legal(self, prefix: Sequence[int], max_len: int | None = None) -> frozenset[int]:
        """The tokens that may follow."""
        legal = super().legal(prefix, max_len)
        plain = legal - self._controls
        ends = legal & frozenset(self.end_ids)
        if not ends:
            return plain or legal
        is_over = all(_is_space(self._tokens[token_id]) for token_id in plain - ends)
        return ends if self._counts_words and is_over else plain


def _is_space(token: bytes) -> bool:
    """Whether the token begins a text of white space alone."""
    split = characters(token)
    assert split is not None
    text, tail = split
    spaces = {chr(point) for point in range(0x3001) if chr(point).isspace()}
    is_begun = not tail or any(char.encode().startswith(tail) for char in spaces)
    return is_begun and spaces.issuperset(text)


class Search:
    """Whether some place that is accepted can be reached: a search in breadth that remembers."""

    def __init__(
        self, ways: Callable[[Place], Iterable[Place]], accepts: Callable[[Place], bool]
    ) -> None:
        self._ways = ways
        self._accepts = accepts
        self._live: dict[Place, bool] = {}

    def is_live(self, start: Place) -> bool:
        if start in self._live:
            return self._live[start]
        came_from: dict[Place, Place | None] = {start: None}
        queue = deque([start])
        while queue:
            place = queue.popleft()
            if self._live.get(place) or self._accepts(place):
                self._mark_live(place, came_from)
                return True
            for further in self._ways(place) if place not in self._live else ():
                if further not in came_from:
                    came_from[further] = place
                    queue.append(further)
        self._live.update(dict.fromkeys(came_from, False))
        return False

    def _mark_live(self, place: Place, came_from: dict[Place, Place | None]) -> None:
        back: Place | None = place
        while back is not None:
            self._live[back] = True
            back = came_from[back]


def _leaves(expression: Expression) -> Iterator[Expression]:
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _leaves(part)
        case Not(part):
            yield from _leaves(part)
        case Constant():
            return
        case _:
            yield expression


def needs_automaton(leaf: Expression) -> bool:
    counts_tokens = isinstance(leaf, Compare) and leaf.measure is Measure.TOKENS
    return not counts_tokens and not isinstance(leaf, StopsBefore)
