"""Stop strings, found in the text wherever tokens begin and end.

The rule: the stop string that is complete first ends the text; of several that are complete at
the same character, the longest. So a text ends at the earliest moment it can, and the same text
ends the same way however it was cut into pieces. It knows no tokens and no streams.

Aho, Corasick: "Efficient string matching: an aid to bibliographic search" (1975).
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """A state: the longest end of the text so far that begins a stop string.

    `depth` is that end's length, `matched` the longest stop string that is complete here.
    """

    depth: int = 0
    matched: str | None = None
    fallback: "_Node | None" = None
    children: "dict[str, _Node]" = field(default_factory=dict)


class StopMatcher:
    """Follows one text and ends it at the first stop string.

    With `keep` the stop string stays in the text (TGI), else it is left out (OpenAI), and so is
    held back whatever could still become one. `matched` is the stop string found, or None.
    """

    def __init__(self, stop_strings: tuple[str, ...], keep: bool) -> None:
        self.matched: str | None = None
        self._keep = keep
        self._root = _automaton(stop_strings)
        self._node = self._root
        self._held = ""
        self._beginnings = frozenset(self._root.children)

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
        if self._keep:
            return text
        return self._release(self._held + text, self._node.depth)

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
        if self._keep:
            return text
        shown = self._release(self._held + text, len(matched))
        self._held = ""
        return shown

    def _release(self, text: str, num_held: int) -> str:
        cut = len(text) - num_held
        self._held = text[cut:]
        return text[:cut]


def _automaton(stop_strings: tuple[str, ...]) -> _Node:
    root = _Node()
    for stop_string in stop_strings:
        node = root
        for char in stop_string:
            node = node.children.setdefault(char, _Node(depth=node.depth + 1))
        node.matched = stop_string
    todo = deque((char, child, root) for char, child in root.children.items())
    while todo:
        char, node, parent = todo.popleft()
        node.fallback = _fallback(char, parent)
        node.matched = node.matched or node.fallback.matched
        todo.extend((char, child, node) for char, child in node.children.items())
    return root


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
