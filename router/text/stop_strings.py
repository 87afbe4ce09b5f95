"""Stop strings, found in the text wherever tokens begin and end.

The rule: the stop string that is complete first ends the text; of several that are complete at
the same character, the longest, but one that is left out before one that stays. So a text ends at
the earliest moment it can, and the same text ends the same way however it was cut into pieces. It
knows no tokens and no streams.

Aho, Corasick: "Efficient string matching: an aid to bibliographic search" (1975).
"""

from collections import deque
from copy import copy
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """A state: the longest end of the text so far that begins a stop string.

    `held_len` is the length of the longest end that begins one which is left out. `matched` is the
    stop string that is complete here, `drops` whether it is left out.
    """

    held_len: int = 0
    matched: str | None = None
    drops: bool = False
    fallback: "_Node | None" = None
    children: "dict[str, _Node]" = field(default_factory=dict)

    def fall_back(self, node: "_Node") -> None:
        """Takes over what holds of shorter ends of the text."""
        self.fallback = node
        self.held_len = max(self.held_len, node.held_len)
        if self.matched is None or (node.drops and not self.drops):
            self.matched, self.drops = node.matched, node.drops


class StopMatcher:
    """Follows one text and ends it at the first stop string.

    With `keep` the stop string stays in the text (TGI), else it is left out (OpenAI), and so are
    the `dropped` phrases in any case; held back is whatever could still become one that is left
    out. `matched` is the one found, or None.
    """

    def __init__(
        self, stop_strings: tuple[str, ...], keep: bool, dropped: tuple[str, ...] = ()
    ) -> None:
        self.matched: str | None = None
        if not keep:
            stop_strings, dropped = (), (*stop_strings, *dropped)
        self._root = _automaton(stop_strings, dropped)
        self._node = self._root
        self._held = ""
        self._beginnings = frozenset(self._root.children)

    def fork(self) -> "StopMatcher":
        """Another one, for a text that has been the same so far."""
        return copy(self)

    def push(self, text: str) -> str:
        """Add `text`; return what may be shown now. Nothing once a stop string was found."""
        if self.matched is not None:
            return ""
        if self._node is self._root and self._beginnings.isdisjoint(text):
            return text
        for index, char in enumerate(text):
            self._node = self._next(char)
            if self._node.matched is not None:
                return self._end(text[: index + 1], self._node.matched)
        return self._release(self._held + text, self._node.held_len)

    def flush(self) -> str:
        """What was held back, when the text ends without a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _next(self, char: str) -> _Node:
        node = self._node
        while char not in node.children:
            if node.fallback is None:
                return node
            node = node.fallback
        return node.children[char]

    def _end(self, text: str, matched: str) -> str:
        self.matched = matched
        shown = self._release(self._held + text, len(matched) if self._node.drops else 0)
        self._held = ""
        return shown

    def _release(self, text: str, num_held: int) -> str:
        cut = len(text) - num_held
        self._held = text[cut:]
        return text[:cut]


def _automaton(kept: tuple[str, ...], dropped: tuple[str, ...]) -> _Node:
    root = _Node()
    for stop_string in kept:
        _add(root, stop_string, drops=False)
    for stop_string in dropped:
        _add(root, stop_string, drops=True)
    todo = deque((char, child, root) for char, child in root.children.items())
    while todo:
        char, node, parent = todo.popleft()
        node.fall_back(_fallback(char, parent))
        todo.extend((char, child, node) for char, child in node.children.items())
    return root


def _add(root: _Node, stop_string: str, *, drops: bool) -> None:
    node = root
    for depth, char in enumerate(stop_string, 1):
        node = node.children.setdefault(char, _Node())
        if drops:
            node.held_len = depth
    node.matched, node.drops = stop_string, drops


def _fallback(char: str, parent: _Node) -> _Node:
    """Where a node reached by `char` from `parent` goes on when its stop string breaks off."""
    node = parent.fallback
    while node is not None:
        if char in node.children:
            return node.children[char]
        if node.fallback is None:
            return node
        node = node.fallback
    return parent  # a child of the root falls back to the root
