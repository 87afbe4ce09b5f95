"""Tries of strings, and the automata that find any of these in a text.

A. V. Aho and M. J. Corasick, "Efficient string matching: an aid to bibliographic search", 1975.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class StringTrie:
    """The trie of strings of labels; node 0 is the root, children come behind their parents.

    children: by node, those by label
    depths:   by node
    ends:     by node, the length of the string that ends there, -1: none
    paths:    by string, its nodes
    """

    def __init__(self, strings: Iterable[Sequence[int]]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.depths = [0]
        self.ends = [-1]
        self.paths = [self._add(string) for string in strings]

    def _add(self, string: Sequence[int]) -> list[int]:
        path = [0]
        for label in string:
            node = self.children[path[-1]].setdefault(label, len(self.children))
            if node == len(self.children):
                self.children.append({})
                self.depths.append(len(path))
                self.ends.append(-1)
            path.append(node)
        self.ends[path[-1]] = len(string)
        return path

    def following(self, num_labels: int) -> tuple[npt.NDArray[np.int32], list[int]]:
        """The automaton of Aho and Corasick: the longest suffix that is a node.

        Returns steps [num_nodes, num_labels] and the length of the longest string at each node.
        """
        steps = np.zeros((len(self.children), num_labels), dtype=np.int32)
        longest = list(self.ends)
        fallback = [0] * len(self.children)
        for node in sorted(range(len(self.children)), key=self.depths.__getitem__):
            if node:
                steps[node] = steps[fallback[node]]
                longest[node] = max(longest[node], longest[fallback[node]])
            for label, child in self.children[node].items():
                fallback[child] = int(steps[node, label]) if node else 0
                steps[node, label] = child
        return steps, longest
