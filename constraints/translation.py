"""A constraint in the words of the engine that follows it: what need not be found out again.

To read a pattern or a schema, and to find a first text of it, is Python's work, which holds up all
other Python of its process: that of a shard's steps. So a worker does it, and a shard receives:

    spec -> worker: reads it, compiles, finds a text -> Translation -> shard: compiles alone
"""

from dataclasses import dataclass

# A shard reads what is longer in less time than everybody needs to carry it around.
MAX_SENT_CHARS = 1_000_000
_MAX_TOKEN_ID = 1 << 31


@dataclass(frozen=True, slots=True)
class Translation:
    """Of a constraint that `constraints.grammars.engine` follows.

    grammar:      what the engine is given
    not_enforced: JSON Pointers of the parts of a lenient schema that masks do not hold
    hints:        pieces of text that stand in the grammar as wholes, for searches
    may_run_on:   bytes may be forced without end somewhere
    completion:   tokens of the first text that was found; None: none was looked for

    Raises TypeError and ValueError for what nobody could be sent: who tells it has read hostile
    texts.
    """

    grammar: str
    not_enforced: tuple[str, ...] = ()
    hints: tuple[bytes, ...] = ()
    may_run_on: bool = False
    completion: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for text in (self.grammar, *self.not_enforced):
            text.encode()  # no half of a surrogate pair
        if type(self.may_run_on) is not bool:
            raise TypeError(f"may_run_on must be a bool. Given: {self.may_run_on!r}")
        for token_id in self.completion or ():
            if type(token_id) is not int or not 0 <= token_id < _MAX_TOKEN_ID:
                raise ValueError(f"completion must be of token ids. Given: {token_id!r}")
