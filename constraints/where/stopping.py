"""The machine of outputs that a phrase may end, and whose phrase is then dropped.

    text so far   = committed text + longest suffix that could become a phrase
    state         = (state of the machine after the committed text, that suffix)
    counts        = of the committed text; what the suffix adds is `pending` until it is committed
    phrase ended  -> a state that accepts where the text before the phrase does, and leads nowhere

A phrase ends an output as soon as it is complete; of several that end at the same character the
longest one counts.
"""

from dataclasses import replace

import numpy as np

from constraints.where.automata import Phrases
from constraints.where.code_points import join
from constraints.where.limits import MAX_STATES, MAX_STEPS, OutOfReach
from constraints.where.machine import Counts, Machine

Places = tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Counts]


def stopping(machine: Machine, phrases: tuple[str, ...]) -> Machine:
    """The machine of outputs that `machine` accepts, or accepts before one of the phrases."""
    trie = Phrases(phrases)
    following, longest = trie.following()
    partition, columns = join([machine.partition, trie.partition])
    num_states, num_nodes, num_labels = machine.num_states, len(following), columns.shape[1]
    if num_states * (num_nodes + 1) > MAX_STATES or num_states * num_nodes * num_labels > MAX_STEPS:
        raise OutOfReach("too many states before phrases")
    spelled = _Spelled(machine, trie)
    total = num_states * (num_nodes + 1)
    steps = np.zeros((total, num_labels), dtype=np.int32)
    gains = np.zeros((total, num_labels, len(machine.axes)), dtype=np.int64)
    pending = np.zeros((total, len(machine.axes)), dtype=np.int64)
    accepts = np.zeros((total, *machine.accepts.shape[1:]), dtype=np.bool_)
    for node in range(num_nodes):
        rows = slice(node * num_states, (node + 1) * num_states)
        states, pending[rows] = spelled.after(node, trie.prefix_len(node), None)
        accepts[rows] = machine.accepts[states]
        for label in range(num_labels):
            machine_label, phrase_label = int(columns[0, label]), int(columns[1, label])
            after = int(following[node, phrase_label])
            kept_len = longest[after] or trie.prefix_len(after)
            committed_len = trie.prefix_len(node) + 1 - kept_len
            states, gained = spelled.after(node, committed_len, machine_label)
            steps[rows, label] = (num_nodes if longest[after] else after) * num_states + states
            gains[rows, label] = gained
    ended = slice(num_nodes * num_states, total)
    accepts[ended] = machine.accepts
    return replace(
        machine, partition=partition, steps=steps, gains=gains, pending=pending, accepts=accepts
    )


class _Spelled:
    """Where the machine is after the first characters of a prefix, from each of its states."""

    def __init__(self, machine: Machine, trie: Phrases) -> None:
        self._machine = machine
        self._labels = [
            [machine.partition.label_of(ord(char)) for char in trie.prefix(node)]
            for node in range(len(trie.children))
        ]

    def after(self, node: int, num_chars: int, label: int | None) -> Places:
        """After `num_chars` of the node's prefix with one character of `label` behind it.

        Answers states [num_states] and what they gained [num_states, num_axes].
        """
        spelling = self._labels[node] + ([] if label is None else [label])
        states = np.arange(self._machine.num_states)
        gained = np.zeros((len(states), len(self._machine.axes)), dtype=np.int64)
        for step in spelling[:num_chars]:
            gained += self._machine.gains[states, step]
            states = self._machine.steps[states, step].astype(np.int64)
        return states, gained
