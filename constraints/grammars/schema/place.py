"""What the rewriter of one keyword works with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from constraints.grammars.schema.reading import Json, below


class SchemaRewriter(Protocol):
    """The walk through a document, as keywords see it."""

    def refuse(self, pointer: str, reason: str) -> None:
        """Raises NotEnforced; in a lenient schema, takes a note."""

    def schema(self, value: Json, pointer: str) -> Json:
        """The rewritten schema of a raw one at a pointer, or made of it."""

    def definition(self, target: str) -> str:
        """The name under which the schema at a pointer is defined in the result."""

    def resolve(self, reference: str, pointer: str) -> str:
        """The pointer that a reference leads to."""

    def translated(self, pattern: str) -> str:
        """A schema's pattern as the result has it. Raises Malformed, NotEnforced."""

    def raw(self, pointer: str) -> Json:
        """What stands in the document."""

    def negated(self, value: Json, place: str) -> Json:
        """The raw schema of all that a raw schema refuses; None after it was refused itself."""

    def probe(self, value: Json, place: str) -> None:
        """Read a raw schema for its errors alone: nothing is made of it."""

    def string(self, value: Json, place: str) -> None:
        """Note strings that cannot be written without \\u."""


@dataclass(frozen=True, slots=True)
class Place:
    """One schema of the document, and what is being made of it.

    schema:   as it is written
    out:      the rewritten one, which handlers add to
    also:     schemas that must hold as well
    """

    rewriter: SchemaRewriter
    schema: dict[str, Json]
    pointer: str
    out: dict[str, Json]
    also: list[Json]

    def more(self, raw: Json, place: str) -> None:
        """Let another raw schema hold as well."""
        self.also.append(self.rewriter.schema(raw, place))

    def map(self, value: Json, place: str) -> dict[str, Json]:
        """The rewritten schemas of an object of them."""
        return {
            name: self.rewriter.schema(inner, below(place, name)) for name, inner in value.items()
        }

    def list(self, value: Json, place: str) -> list[Json]:
        """The rewritten schemas of a list of them."""
        return [
            self.rewriter.schema(inner, below(place, index)) for index, inner in enumerate(value)
        ]


# Takes the place, the keyword's value and its pointer.
Handler = Callable[[Place, Json, str], None]
