"""What can be wrong with a constraint, in the words of its author.

ConstraintError
|-- Malformed       the text is no expression, schema, pattern or grammar; says where
|-- NotEnforced     in order, but a part of it would not be enforced; says which
|-- Contradiction   nothing can satisfy it; says which parts exclude each other
|-- DoesNotFit      the shortest text that satisfies it needs more tokens than there are
|-- TooComplex      compiling or following it takes more time or memory than is allowed
|-- IllegalToken    a matcher was given a token that its mask does not allow; nothing changed
`-- EngineFailed    the engine broke while it followed an output; that output cannot go on
"""


class ConstraintError(Exception):
    """Base of everything that this library raises on purpose."""


class Malformed(ConstraintError):
    """The text cannot be read.

    `position` is an offset in characters, `pointer` a JSON Pointer into a schema; None where none
    is known. The message has them, a line with a caret and what was expected, ready to be shown.
    """

    def __init__(
        self, message: str, position: int | None = None, pointer: str | None = None
    ) -> None:
        super().__init__(message)
        self.position = position
        self.pointer = pointer


class NotEnforced(ConstraintError):
    """A part would be ignored.

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
    """No text satisfies the constraint. `parts` are the parts that exclude each other, as written.

    `parts` may be empty where only the whole is known to be empty.
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
    """The token cannot follow; the matcher is as it was."""


class EngineFailed(ConstraintError):
    """The matcher is broken for good and must be thrown away."""
