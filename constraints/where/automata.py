"""The automaton of each atom of an expression; complete, as in `constraints.regex.automaton`."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from constraints.regex.automaton import Automaton, Steps
from constraints.regex.char_sets import WHITESPACE, Partition
from constraints.regex.limits import MAX_STEPS, OutOfReach
from constraints.where.terms import Relation


def words() -> Automaton:
    """Accepts within a word: other characters begin one, whitespace ends it."""
    steps = np.array([[1, 0], [1, 0]], dtype=np.int32)
    return Automaton(Partition.of_sets([WHITESPACE]), steps, np.array([False, True]))


def sentences() -> Automaton:
    """Accepts within a sentence without a full stop so far."""
    steps = np.array([[1, 0], [1, 0]], dtype=np.int32)
    return Automaton(Partition.of_chars("."), steps, np.array([False, True]))


class PhraseTrie:
    """The trie of some phrases with the failure links of Aho and Corasick; node 0 is the root."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self.phrases = tuple(dict.fromkeys(phrases))
        self.chars = sorted(set("".join(self.phrases)))
        self.partition = Partition.of_chars(self.chars)
        self._label = {char: index + 1 for index, char in enumerate(self.chars)}
        self.children: list[dict[int, int]] = [{}]
        # For each node, a phrase through it and the length of its prefix there.
        self._through: list[tuple[str, int]] = [("", 0)]
        self._paths: dict[str, list[int]] = {"": [0]}
        self.ends: list[int] = [0]  # the length of the phrase that ends in this node
        for phrase in self.phrases:
            self._insert(phrase)
        if len(self.children) * (len(self.chars) + 1) > MAX_STEPS:
            raise OutOfReach(f"{len(self.children)} prefixes of phrases")

    def _insert(self, phrase: str) -> None:
        node = 0
        path = self._paths[phrase] = [node]
        for length, char in enumerate(phrase, start=1):
            label = self._label[char]
            child = self.children[node].get(label)
            if child is None:
                child = len(self.children)
                self.children[node][label] = child
                self.children.append({})
                self._through.append((phrase, length))
                self.ends.append(0)
            node = child
            path.append(node)
        self.ends[node] = len(phrase)

    def beginning(self, node: int, length: int) -> int:
        """The node of the first `length` characters of a node's prefix."""
        return self._paths[self._through[node][0]][length]

    def prefix_len(self, node: int) -> int:
        return self._through[node][1]

    def by_depth(self) -> Iterator[tuple[int, Mapping[int, int]]]:
        """Each node with its children by label, in breadth-first order."""
        queue = deque([0])
        while queue:
            node = queue.popleft()
            queue.extend(self.children[node].values())
            yield node, self.children[node]

    def following(self) -> tuple[Steps, list[int]]:
        """The Aho-Corasick automaton: the longest suffix that is a node, for each node and label.

        Returns steps [num_nodes, num_labels] and the length of the longest phrase at each node.
        """
        steps = np.zeros((len(self.children), len(self.chars) + 1), dtype=np.int32)
        longest = list(self.ends)
        fallback = [0] * len(self.children)
        for node, children in self.by_depth():
            if node:
                steps[node] = steps[fallback[node]]
            for label, child in children.items():
                fallback[child] = int(steps[node, label]) if node else 0
                steps[node, label] = child
                longest[child] = longest[child] or longest[fallback[child]]
        return steps, longest

    def prefix_tree(self) -> Steps:
        """The trie itself: other characters lead to one more state, the last, which is a sink."""
        sink = len(self.children)
        steps = np.full((sink + 1, len(self.chars) + 1), sink, dtype=np.int32)
        for node, children in enumerate(self.children):
            for label, child in children.items():
                steps[node, label] = child
        return steps


def contains(phrases: Sequence[str]) -> Automaton:
    """Accepts once one of the phrases has occurred in the text."""
    trie = PhraseTrie(phrases)
    steps, longest = trie.following()
    accepts = np.array([length > 0 or "" in trie.phrases for length in longest])
    found = np.flatnonzero(accepts)
    steps[found] = found[:, None]
    return Automaton(trie.partition, steps, accepts)


def starts_with(phrases: Sequence[str]) -> Automaton:
    """Accepts once the text began with one of the phrases."""
    trie = PhraseTrie(phrases)
    steps = trie.prefix_tree()
    found = [node for node, end in enumerate(trie.ends) if end or "" in trie.phrases]
    for node in found:
        steps[node] = node
    accepts = np.zeros(len(steps), dtype=np.bool_)
    accepts[found] = True
    return Automaton(trie.partition, steps, accepts)


def ends_with(phrases: Sequence[str]) -> Automaton:
    """Accepts where the text ends with one of the phrases."""
    trie = PhraseTrie(phrases)
    steps, longest = trie.following()
    accepts = np.array([length > 0 or "" in trie.phrases for length in longest])
    return Automaton(trie.partition, steps, accepts)


def one_of(values: Sequence[str]) -> Automaton:
    """Accepts these texts."""
    trie = PhraseTrie(values)
    accepts = np.array([end > 0 for end in trie.ends] + [False])
    accepts[0] = "" in trie.phrases
    return Automaton(trie.partition, trie.prefix_tree(), accepts)


def stops_at(phrases: Sequence[str]) -> Automaton:
    """Accepts unless something follows one of the phrases."""
    trie = PhraseTrie(phrases)
    steps, longest = trie.following()
    sink = len(steps)
    steps = np.vstack([steps, np.full((1, steps.shape[1]), sink, dtype=np.int32)])
    for node, length in enumerate(longest):
        if length or "" in trie.phrases:
            steps[node] = sink
    accepts = np.ones(len(steps), dtype=np.bool_)
    accepts[sink] = False
    return Automaton(trie.partition, steps, accepts)


_MINUS = ord("-")
_POINT = ord(".")
_ZERO = ord("0")
# Labels: 0 other, 1 minus, 2 point, 3 .. 12 the digits.
_PARTITION_SETS = [((_MINUS, _MINUS),), ((_POINT, _POINT),)] + [
    ((_ZERO + digit, _ZERO + digit),) for digit in range(10)
]
_FIRST_DIGIT = 3
_NUM_LABELS = _FIRST_DIGIT + 10

# The state of a numeral: its sign, its number of digits without leading zeros, and how they compare
# with as many digits of the bound. A longer numeral counts as one digit longer than the bound.
_Place = tuple[str, int, int]

_HOLDS: dict[Relation, Callable[[int], bool]] = {
    Relation.LT: lambda order: order < 0,
    Relation.LE: lambda order: order <= 0,
    Relation.EQ: lambda order: order == 0,
    Relation.NE: lambda order: order != 0,
    Relation.GE: lambda order: order >= 0,
    Relation.GT: lambda order: order > 0,
}


def is_int() -> Automaton:
    """Accepts -?[0-9]+."""
    return _numeral(decimals=False)


def is_float() -> Automaton:
    """Accepts -?[0-9]+(\\.[0-9]+)?."""
    return _numeral(decimals=True)


def _numeral(*, decimals: bool) -> Automaton:
    start, signed, whole, pointed, fraction, sink = range(6)
    steps = np.full((6, _NUM_LABELS), sink, dtype=np.int32)
    steps[start, 1] = signed
    steps[[start, signed, whole], _FIRST_DIGIT:] = whole
    steps[[pointed, fraction], _FIRST_DIGIT:] = fraction
    if decimals:
        steps[whole, 2] = pointed
    accepts = np.isin(np.arange(6), [whole, fraction])
    return Automaton(Partition.of_sets(_PARTITION_SETS), steps, accepts)


def compared(relation: Relation, bound: int) -> Automaton:
    """Accepts integers whose value has this relation to the bound; leading zeros are ignored."""
    digits = str(abs(bound)) if bound else ""
    holds = _HOLDS[relation]
    places: dict[_Place | None, int] = {("", -1, 0): 0, None: 1}
    rows: list[list[int]] = [[], [1] * _NUM_LABELS]
    accepts = [False, False]
    queue: list[_Place] = [("", -1, 0)]
    while queue:
        place = queue.pop()
        row = [1] * _NUM_LABELS
        for label in [1, *range(_FIRST_DIGIT, _NUM_LABELS)]:
            following = _after(place, label, digits)
            if following is not None and following not in places:
                places[following] = len(rows)
                rows.append([])
                accepts.append(holds(_order(following, bound, digits)) and following[1] >= 0)
                queue.append(following)
            row[label] = places[following]
        rows[places[place]] = row
    return Automaton(
        Partition.of_sets(_PARTITION_SETS), np.array(rows, dtype=np.int32), np.array(accepts)
    )


def _after(place: _Place, label: int, digits: str) -> _Place | None:
    """`length` is -1 before the first digit."""
    sign, length, order = place
    if label == 1:
        return ("-", -1, 0) if not sign and length < 0 else None
    digit = label - _FIRST_DIGIT
    if digit == 0 and length <= 0:
        return sign, 0, 0
    length = max(length, 0)
    if length >= len(digits):
        return sign, len(digits) + 1, 1
    if order == 0:
        order = (digit > int(digits[length])) - (digit < int(digits[length]))
    return sign, length + 1, order


def _order(place: _Place, bound: int, digits: str) -> int:
    """The comparison of the numeral's value with the bound: negative, 0 or positive."""
    sign, length, order = place
    if length != len(digits):
        order = -1 if length < len(digits) else 1
    is_negative = sign == "-" and length > 0
    if is_negative != (bound < 0):
        return -1 if is_negative else 1
    return -order if is_negative else order
