"""Rewrites a schema so that the engine enforces it exactly.

    in:   any draft, references of any kind, keywords that the engine ignores or enforces loosely
    out:  2020-12; `$ref` to `#/$defs/...` only; no annotations; keywords that it enforces

What cannot be expressed is refused with its pointer or, in a lenient schema, dropped and reported.

One rewriting is of a whole schema. Open ranges that the engine treats as closed,
`exclusiveMinimum: 0, maximum: 0.5`: where a range excludes a whole number and lies between it and
the next whole number that is farther from zero, the end is moved to the next number that is
included.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from constraints.errors import Malformed, NotEnforced, TooComplex
from constraints.regex.writing import looks_around, translate_search
from constraints.schema.grammar import WATCH, Pairs, all_parts
from constraints.schema.reading import (
    ANNOTATIONS,
    CONTENT,
    EXTENSIONS,
    READ_BESIDE,
    REFUSED,
    SHAPES,
    Json,
    References,
    at,
    below,
    intended_assertion,
    shown,
    spelt_out,
)
from constraints.schema.watched import Watch

# Digits of a bound that the engine considers; numbers with more may lie between the ends.
_NUM_DIGITS = 15
_ENDS = (
    # the open end, the closed one, the keywords of the other end, the sign of the range
    ("exclusiveMinimum", "minimum", ("maximum", "exclusiveMaximum"), 1),
    ("exclusiveMaximum", "maximum", ("minimum", "exclusiveMinimum"), -1),
)
_MERGED = frozenset(("allOf", "anyOf", "oneOf"))


def close_narrow_ranges(root: Json, definitions: dict[str, Json]) -> None:
    """Rewrite such ends of ranges, in place.

    The engine merges what a schema says of one value in several parts: then the other end may be in
    any of them.
    """
    schemas = all_parts(root, definitions)
    merges = any(part.keys() & _MERGED or {"$ref"} < part.keys() for part in schemas)
    for opened, closed, others, sign in _ENDS:
        everywhere = sorted(_ends(schemas, others, sign))
        for part in schemas:
            if opened in part and part.get("type") != "integer":
                end = sign * part[opened]
                ends = everywhere if merges else sorted(_ends([part], others, sign))
                farther = bisect_right(ends, end)
                is_narrow = farther < len(ends) and ends[farther] < end + 1
                if end >= 0 and end == int(end) and is_narrow:
                    _close(part, opened, closed, sign)


def _ends(schemas: Iterable[dict[str, Json]], keywords: Sequence[str], sign: int) -> list[float]:
    return [sign * part[key] for part in schemas for key in keywords if key in part]


def _close(part: dict[str, Json], opened: str, closed: str, sign: int) -> None:
    end = sign * part.pop(opened)
    places = max(1, _NUM_DIGITS - len(str(int(end))))
    least = sign * (end + 10.0**-places)
    both = (least, part.get(closed, least))
    part[closed] = max(both) if sign > 0 else min(both)


# The most visits of subschemas.
_MAX_SCHEMAS = 50_000
# The most unknown keywords that are compared with the known ones.
_MAX_UNKNOWN = 300
_MAX_LOOKING = 24
NOT_WATCHED = (
    "not enforced where other text surrounds the JSON, or a choice of schemas decides on it"
)


@dataclass(frozen=True, slots=True)
class Place:
    """One schema of the document, and its rewritten form.

    schema:   as written
    out:      the rewritten one, which handlers add to
    also:     further schemas that must hold
    """

    rewriter: "Rewriter"
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


@dataclass
class Rewritten:
    """A rewritten schema.

    document:     in the words of JSON Schema alone
    root:         the schema, referring to `definitions` as `#/$defs/<name>`
    not_enforced: pointers of what was dropped, or has no meaning that is known
    given_up:     those of them that assert something
    sources:      schemas of the result, with their pointers and what was read there
    checked_at_close: pointers of what is judged where a value ends
    origins:      the pointer that each schema of the result came from, by its id()
    needs_u:      pointers of strings that JSON can only write with \\u
    watches:      what is watched beside the engine
    """

    document: Json = field(repr=False)
    root: Json = True
    definitions: dict[str, Json] = field(default_factory=dict)
    not_enforced: dict[str, None] = field(default_factory=dict)
    given_up: dict[str, None] = field(default_factory=dict)
    sources: list[tuple[dict[str, Json], str, Json]] = field(default_factory=list, repr=False)
    origins: dict[int, str] = field(default_factory=dict, repr=False)
    needs_u: list[str] = field(default_factory=list)
    watches: tuple[Watch, ...] = ()
    checked_at_close: tuple[str, ...] = ()

    def give_up(self, pointer: str) -> None:
        self.given_up[pointer] = None
        self.not_enforced[pointer] = None


class Rewriter:
    """Rewrites one document, from the root through all references.

    watches:  whether texts can be watched for what the engine does not remember
    overlaps: by the pointer of a `oneOf`, its options that may have values in common
    """

    def __init__(
        self,
        document: Json,
        handlers: Mapping[str, Handler],
        *,
        lenient: bool = False,
        watches: bool = True,
        overlaps: Mapping[str, Pairs] = MappingProxyType({}),
    ) -> None:
        """`handlers`: by keyword. Raises Malformed, TooComplex."""
        self.watches = watches
        self.overlaps = overlaps
        self._rewritten = Rewritten(spelt_out(document))
        self._handlers = handlers
        self._lenient = lenient
        self._references = References(self._rewritten.document)
        self.draft = self._references.draft
        self._names: dict[str, str] = {}
        self._pending: list[str] = []
        self._num_schemas = 0
        self._unknown: set[str] = set()
        self._looking: set[str] = set()

    def rewrite(self) -> Rewritten:
        """Raises Malformed, NotEnforced, TooComplex."""
        rewritten = self._rewritten
        if not isinstance(rewritten.document, dict | bool):
            raise Malformed("a schema is an object, true or false", pointer="")
        rewritten.root = self.schema(rewritten.document, "")
        while self._pending:
            pointer = self._pending.pop()
            rewritten.definitions[self._names[pointer]] = self.schema(self.raw(pointer), pointer)
        return rewritten

    def refuse(self, pointer: str, reason: str) -> None:
        """Raises NotEnforced; in a lenient schema, records it."""
        if not self._lenient:
            raise NotEnforced(f"{pointer or 'the schema'}: {reason}", pointer)
        self._rewritten.give_up(pointer)

    def note(self, pointer: str) -> None:
        """Records what asserts nothing that is known, and so is not enforced."""
        self._rewritten.not_enforced[pointer] = None

    def schema(self, value: Json, pointer: str) -> Json:
        """The rewritten form of a schema; `pointer`: its place or origin."""
        self._num_schemas += 1
        if self._num_schemas > _MAX_SCHEMAS:
            raise TooComplex(f"the schema has more than {_MAX_SCHEMAS} schemas in it")
        if isinstance(value, bool):
            return value
        raw = value
        value = self.draft.read(value)
        self.check_keywords(value, pointer)
        place = Place(self, value, pointer, {}, [])
        for keyword in value:
            self._keyword(place, keyword)
        out = place.out
        if place.also:
            out["allOf"] = [*out.get("allOf", ()), *place.also]
        put_patterns_last(out)
        patterns = [below(pointer, each) for each in ("patternProperties", "propertyNames")]
        if any(each in self._rewritten.given_up for each in patterns):
            # Which keys are others is not known.
            out.pop("additionalProperties", None)
        self._rewritten.origins[id(out)] = pointer
        self._rewritten.sources.append((out, pointer, raw))
        return out

    def check_keywords(self, value: dict[str, Json], pointer: str) -> None:
        """Raises Malformed for a keyword of this schema whose value is of another shape."""
        for keyword, inner in value.items():
            shape = SHAPES.get(keyword)
            if shape is not None and not shape[0](inner):
                place = below(pointer, keyword)
                rule = f"the value of {keyword} must be {shape[1]}"
                message = f"{place}: {rule}. Given: {shown(inner)}"
                raise Malformed(message, pointer=place)

    def _keyword(self, place: Place, keyword: str) -> None:
        value = place.schema[keyword]
        pointer = below(place.pointer, keyword)
        if keyword in self._handlers:
            self._handlers[keyword](place, value, pointer)
        elif keyword in REFUSED:
            self.refuse(pointer, f"{keyword}: {REFUSED[keyword]}")
        elif keyword.startswith(EXTENSIONS):
            self.note(pointer)
        elif keyword in CONTENT:
            # Generators write base64 with its pattern.
            if keyword != "contentEncoding" or "pattern" not in place.schema:
                self.note(pointer)
        elif keyword not in ANNOTATIONS | READ_BESIDE:
            self._unknown.add(keyword)
            if len(self._unknown) > _MAX_UNKNOWN:
                raise TooComplex(f"more than {_MAX_UNKNOWN} keywords that JSON Schema has not")
            known = intended_assertion(keyword)
            if known is not None and not self._lenient:
                self.refuse(pointer, f"{keyword!r} is not a keyword; did you mean {known!r}?")
            else:
                self.note(pointer)

    def definition(self, target: str) -> str:
        """The name under which the schema at a pointer is defined in the result."""
        name = self._names.get(target)
        if name is None:
            name = self._names[target] = f"d{len(self._names)}"
            self._pending.append(target)
        return name

    def resolve(self, reference: str, pointer: str) -> str:
        """The pointer that a reference leads to."""
        return self._references.resolve(reference, pointer)

    def translated(self, pattern: str) -> str:
        """A pattern in the engine's syntax. Raises Malformed, NotEnforced, TooComplex."""
        if looks_around(pattern):
            self._looking.add(pattern)
        if len(self._looking) > _MAX_LOOKING:
            raise TooComplex(f"more than {_MAX_LOOKING} patterns that look around")
        return f"^(?:{translate_search(pattern)})$"

    def raw(self, pointer: str) -> Json:
        """The value at a pointer of the document."""
        return at(self._rewritten.document, pointer)

    def string(self, text: str, pointer: str) -> None:
        """Record a string that cannot be written without \\u."""
        if any((char < " " and char not in "\b\t\n\f\r") or char == "\x7f" for char in text):
            self._rewritten.needs_u.append(pointer)


def put_patterns_last(schema: dict[str, Json]) -> None:
    """Bring patterns of keys and what is said of others together, in place.

    The engine joins a choice with what stands before it. With a choice between the two, it would
    take no key.
    """
    if "patternProperties" in schema:
        for keyword in ("patternProperties", "additionalProperties"):
            if keyword in schema:
                schema[keyword] = schema.pop(keyword)
