"""A constraint in the words of the engine that follows it: what need not be found out again.

To read a pattern or a schema, and to find a first text of it, is Python's work, which holds up all
other Python of its process: that of a shard's steps. So a worker does it, and a shard is told:

    spec -> worker: reads it, compiles, finds a text -> Translation -> shard: compiles alone
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Translation:
    """Of a constraint that `constraints.grammars.engine` follows.

    grammar:      what the engine is given
    not_enforced: JSON Pointers of the parts of a lenient schema that masks do not hold
    hints:        pieces of text that stand in the grammar as wholes, for searches
    may_run_on:   bytes may be forced without end somewhere
    completion:   tokens of the first text that was found; None: none was looked for
    """

    grammar: str
    not_enforced: tuple[str, ...] = ()
    hints: tuple[bytes, ...] = ()
    may_run_on: bool = False
    completion: tuple[int, ...] | None = None
