"""The arguments of the rewriters of single keywords."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from constraints.schema.disjoint import Pairs
from constraints.schema.reading import Json, below

# What the engine is told of neither: keywords for which texts are watched beside it.
WATCH = "x-watch"
NOT_WATCHED = (
    "not enforced where other text surrounds the JSON, or a choice of schemas decides on it"
)


class SchemaRewriter(Protocol):
    """The rewriter of a document, as the handlers of keywords use it."""

    @property
    def watches(self) -> bool:
        """Whether texts are watched for what the engine does not remember."""

    @property
    def overlaps(self) -> Mapping[str, Pairs]:
        """By the pointer of a `oneOf`, its options that may have values in common."""

    def refuse(self, pointer: str, reason: str) -> None:
        """Raises NotEnforced; in a lenient schema, records it."""

    def note(self, pointer: str) -> None:
        """Records what asserts nothing that is known, and so is not enforced."""

    def schema(self, value: Json, pointer: str) -> Json:
        """The rewritten form of a raw schema; `pointer`: its place or origin."""

    def definition(self, target: str) -> str:
        """The name under which the schema at a pointer is defined in the result."""

    def resolve(self, reference: str, pointer: str) -> str:
        """The pointer that a reference leads to."""

    def translated(self, pattern: str) -> str:
        """The rewritten form of a pattern. Raises Malformed, NotEnforced."""

    def may_look_around(self, pattern: str) -> bool:
        """Whether few enough patterns have needed an automaton for this one to have one, too."""

    def raw(self, pointer: str) -> Json:
        """The value at a pointer of the document."""

    def negated(self, value: Json, place: str) -> Json:
        """The negation of a raw schema; None if it was refused."""

    def opposite(self, value: Json, place: str, beside: Json = True) -> Json:
        """The negation of a raw schema, beside another one. Raises NoNegation."""

    def probe(self, value: Json, place: str) -> None:
        """Check a raw schema for errors, without a result."""

    def string(self, value: Json, place: str) -> None:
        """Record strings that cannot be written without \\u."""


@dataclass(frozen=True, slots=True)
class Place:
    """One schema of the document, and its rewritten form.

    schema:   as written
    out:      the rewritten one, which handlers add to
    also:     further schemas that must hold
    """

    rewriter: SchemaRewriter
    schema: dict[str, Json]
    pointer: str
    out: dict[str, Json]
    also: list[Json]

    def more(self, raw: Json, place: str) -> None:
        """Require another raw schema, too."""
        self.also.append(self.rewriter.schema(raw, place))

    def watch(self, keyword: str, value: Json, pointer: str) -> None:
        """Have the engine's texts watched for a keyword of this schema, where that can be done."""
        if self.rewriter.watches:
            self.out.setdefault(WATCH, {})[keyword] = value
        else:
            self.rewriter.refuse(pointer, NOT_WATCHED)

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
