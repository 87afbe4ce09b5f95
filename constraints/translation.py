"""A constraint translated for llguidance, to be reused by other processes.

Parsing a pattern or a schema and finding a first text runs in Python and blocks the other Python
threads of its process, such as a shard's steps. So a worker does it, and a shard receives the
result:

    spec -> worker: parses, compiles, finds a text -> Translation -> shard: only compiles
"""

from dataclasses import dataclass

# The most bytes: a shard translates longer ones faster than they are transferred.
MAX_SENT_CHARS = 1_000_000
_MAX_TOKEN_ID = 1 << 31


@dataclass(frozen=True, slots=True)
class Translation:
    """The translation of a constraint for `constraints.grammars.engine`.

    grammar:      the grammar text
    not_enforced: JSON Pointers of the parts of a lenient schema that masks do not enforce
    hints:        texts of the language or of its parts, for searches
    may_run_on:   forced bytes may repeat without end
    completion:   tokens of the first text found; None: not searched
    watch:        what is watched beside the grammar, see `constraints.grammars.watching`

    Raises TypeError and ValueError for invalid values: the sender has parsed hostile texts.
    """

    grammar: str
    not_enforced: tuple[str, ...] = ()
    hints: tuple[bytes, ...] = ()
    may_run_on: bool = False
    completion: tuple[int, ...] | None = None
    watch: str = ""

    def __post_init__(self) -> None:
        for text in (self.grammar, self.watch, *self.not_enforced):
            text.encode()  # refuses lone surrogates
        if type(self.may_run_on) is not bool:
            raise TypeError(f"may_run_on must be a bool. Given: {self.may_run_on!r}")
        for token_id in self.completion or ():
            if type(token_id) is not int or not 0 <= token_id < _MAX_TOKEN_ID:
                raise ValueError(f"completion must be of token ids. Given: {token_id!r}")
