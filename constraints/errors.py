"""The errors of constraints, as a tree.

ConstraintError
|-- Malformed       the text is no expression, schema, pattern or grammar; with the place
|-- NotEnforced     well-formed, but a part would not be enforced; with that part
|-- Contradiction   nothing can satisfy it; with the parts that exclude each other
|-- DoesNotFit      the shortest text that satisfies it needs more tokens than there are
|-- TooComplex      compiling or following it takes more time or memory than is allowed
|-- IllegalToken    a matcher was given a token that its mask does not allow; nothing changed
`-- EngineFailed    the engine broke while it followed an output, which cannot continue
"""


class ConstraintError(Exception):
    """Base of all errors that this library raises intentionally."""


class Malformed(ConstraintError):
    """The text cannot be parsed.

    `position` is an offset in characters, `pointer` a JSON Pointer into a schema; None where none
    is known. The message contains them, a line with a caret, and what was expected.
    """

    def __init__(
        self, message: str, position: int | None = None, pointer: str | None = None
    ) -> None:
        super().__init__(message)
        self.position = position
        self.pointer = pointer


class NotEnforced(ConstraintError):
    """A part of the constraint would be ignored.

    `pointer` is its JSON Pointer in a schema, `position` its offset in another text; None
    elsewhere.
    """

    def __init__(
        self, message: str, pointer: str | None = None, position: int | None = None
    ) -> None:
        super().__init__(message)
        self.pointer = pointer
        self.position = position


class Contradiction(ConstraintError):
    """No text satisfies the constraint. `parts`: those that exclude each other, as written.

    `parts` may be empty if no smaller conflict is known.
    """

    def __init__(self, message: str, parts: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.parts = parts


class DoesNotFit(ConstraintError):
    """The shortest text found needs `needed_len` tokens, and only `max_len` may be made."""

    def __init__(self, needed_len: int, max_len: int) -> None:
        super().__init__(
            f"the shortest text that satisfies the constraint has {needed_len} tokens,"
            f" and at most {max_len} may be generated"
        )
        self.needed_len = needed_len
        self.max_len = max_len


class TooComplex(ConstraintError):
    """A limit of time, memory or size was reached; the message names it."""


class IllegalToken(ConstraintError):
    """The token cannot follow; the matcher has not changed."""


class EngineFailed(ConstraintError):
    """The matcher is broken and must be discarded."""
