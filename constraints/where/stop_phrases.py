"""Adds dropped stop phrases to a machine: a phrase may end an output, and is then dropped.

    text so far   = committed text + longest suffix that may become a phrase
    state         = (state of the machine after the committed text, that suffix)
    counts        = of the committed text; those of the suffix are `pending` until it is committed
    phrase ended  -> a state without steps, accepting if the text before the phrase is accepted

A phrase ends an output as soon as it is complete; if several end at the same character, the longest
one counts.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from constraints.where.automata import PhraseTrie
from constraints.where.code_points import join
from constraints.where.limits import MAX_STATES, MAX_STEPS, OutOfReach
from constraints.where.machine import Counts, Machine


def with_stop_phrases(machine: Machine, phrases: tuple[str, ...]) -> Machine:
    """The machine of outputs that `machine` accepts, or accepts before one of the phrases."""
    trie = PhraseTrie(phrases)
    following, longest = trie.following()
    partition, columns = join([machine.partition, trie.partition])
    num_states = machine.num_states
    num_nodes = len(following)
    num_labels = columns.shape[1]
    total = num_states * (num_nodes + 1)
    if total > MAX_STATES or num_states * num_nodes * num_labels > MAX_STEPS:
        raise OutOfReach("too many states before phrases")
    spelled = _Spelled(machine, trie)
    # [num_nodes + 1, num_states, ...]; the last block is of outputs that a phrase has ended.
    steps = np.zeros((num_nodes + 1, num_states, num_labels), dtype=np.int32)
    gains = np.zeros((*steps.shape, len(machine.counters)), dtype=np.int64)
    # Characters that continue no phrase commit the suffix; the root commits the character itself.
    steps[0] = machine.steps[:, columns[0]]
    gains[0] = machine.gains[:, columns[0]]
    fallback = [0] * num_nodes
    for node, children in trie.by_depth():
        if node:
            kept_len = trie.prefix_len(fallback[node])
            states, gained = spelled.after(trie.beginning(node, trie.prefix_len(node) - kept_len))
            steps[node] = steps[fallback[node]][states]
            gains[node] = gains[fallback[node]][states] + gained[:, None]
        for label, child in children.items():
            fallback[child] = int(following[fallback[node], label]) if node else 0
            kept_len = longest[child] or trie.prefix_len(child)
            states, gained = spelled.after(trie.beginning(child, trie.prefix_len(child) - kept_len))
            goes_on = columns[1] == label
            block = num_nodes if longest[child] else child
            steps[node][:, goes_on] = (block * num_states + states)[:, None]
            gains[node][:, goes_on] = gained[:, None]
    return replace(
        machine,
        partition=partition,
        steps=steps.reshape(total, num_labels),
        gains=gains.reshape(total, num_labels, len(machine.counters)),
        pending=np.concatenate([*spelled.gained, np.zeros_like(machine.pending)]),
        accepts=machine.accepts[np.concatenate([*spelled.states, np.arange(num_states)])],
    )


class _Spelled:
    """The state of the machine behind each prefix of a phrase, from each of its states.

    states: by node, [num_states]; gained: by node, [num_states, num_counters]
    """

    def __init__(self, machine: Machine, trie: PhraseTrie) -> None:
        labels = [0, *(machine.partition.label_of(ord(char)) for char in trie.chars)]
        first: Counts = np.zeros((machine.num_states, len(machine.counters)), dtype=np.int64)
        self.states: list[npt.NDArray[np.int64]] = [np.arange(machine.num_states)] * len(trie.ends)
        self.gained: list[Counts] = [first] * len(trie.ends)
        for node, children in trie.by_depth():
            states, gained = self.after(node)
            for label, child in children.items():
                self.gained[child] = gained + machine.gains[states, labels[label]]
                self.states[child] = machine.steps[states, labels[label]].astype(np.int64)

    def after(self, node: int) -> tuple[npt.NDArray[np.int64], Counts]:
        """The states, and their gains."""
        return self.states[node], self.gained[node]
