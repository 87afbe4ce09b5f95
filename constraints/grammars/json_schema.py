"""JSON schemas as grammars: all steps from the text to the engine's input."""

from dataclasses import dataclass, replace

from constraints.errors import ConstraintError, NotEnforced, TooComplex
from constraints.grammars.engine_messages import explain
from constraints.grammars.limits import Limits
from constraints.grammars.schema.disjoint import Pairs, open_one_ofs
from constraints.grammars.schema.engine_options import grammar_of, may_respell_keys
from constraints.grammars.schema.locate_refusal import RefusalLocator
from constraints.grammars.schema.narrow_ranges import close_narrow_ranges
from constraints.grammars.schema.place import NOT_WATCHED, WATCH
from constraints.grammars.schema.reading import Json, below, read
from constraints.grammars.schema.rewriting import Rewritten, rewrite
from constraints.grammars.schema.unproductive_definitions import prune
from constraints.grammars.schema.watched import bound, watches_of
from constraints.grammars.watching.watch import Watch
from constraints.spec import ConstraintSpec, Whitespace

# The most parts that a lenient schema drops, one after the other.
_MAX_RELAXED = 50
# The most times that a schema is rewritten: a `oneOf` may be below another one.
_MAX_ROUNDS = 4
# The most pairs of options of a `oneOf` that are rewritten so as to exclude each other.
_MAX_PAIRS = 66


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """A schema, ready for the engine.

    text:          the grammar
    not_enforced:  pointers of what it does not enforce; empty unless lenient
    """

    text: str
    not_enforced: tuple[str, ...]
    _whitespace: Whitespace
    _locator: RefusalLocator

    @property
    def rewritten(self) -> Rewritten:
        """The schema that the grammar was written from."""
        return self._locator.rewritten

    def explain(self, message: str) -> ConstraintError:
        """The error for a message of the engine, with a pointer into the schema if one is found."""
        return self._locator.error(message)

    def without_empty_definition(self) -> "SchemaGrammar | None":
        """The grammar with an unsatisfiable definition replaced by `false`, if there is one.

        The engine refuses a schema with such a definition even where it is optional.
        """
        rewritten = self._locator.rewritten
        name = self._locator.empty_definition()
        if name is None:
            return None
        rewritten.definitions[name] = False
        _settle(rewritten)
        return _written(rewritten, self._whitespace, self._locator)

    def of_its_type(self) -> "SchemaGrammar":
        """The grammar of any value of the root's type, where no more can be enforced."""
        rewritten = of_its_type(self.rewritten.document)
        locator = RefusalLocator(rewritten, Limits())
        return _written(rewritten, self._whitespace, locator)


def prepare(spec: ConstraintSpec, limits: Limits) -> SchemaGrammar:
    """Read a schema. Raises Malformed, NotEnforced, Contradiction, TooComplex."""
    document = read(spec.text)
    watches = not spec.is_part
    if spec.lenient:
        rewritten = relaxed(document, limits, watches=watches)
    else:
        rewritten = checked(document, watches=watches)
    return _written(rewritten, spec.whitespace, RefusalLocator(rewritten, limits))


def relaxed(document: Json, limits: Limits, *, watches: bool = True) -> Rewritten:
    """All of a parsed schema that can be enforced, or its type. Raises Malformed, Contradiction."""
    try:
        rewritten = checked(document, lenient=True, watches=watches)
    except (NotEnforced, TooComplex):
        return of_its_type(document)
    locator = RefusalLocator(rewritten, limits)
    _relax(rewritten, locator)
    message = locator.message(rewritten.root)
    is_beyond = bool(message) and isinstance(explain(message), NotEnforced | TooComplex)
    return of_its_type(document) if is_beyond else rewritten


def of_its_type(document: Json) -> Rewritten:
    """A schema of which no more is enforced than the type of the whole."""
    type_ = document.get("type") if isinstance(document, dict) else None
    rewritten = rewrite({} if type_ is None else {"type": type_})
    return replace(rewritten, document=document, not_enforced=[""])


def _written(
    rewritten: Rewritten, whitespace: Whitespace, locator: RefusalLocator
) -> SchemaGrammar:
    text = grammar_of(rewritten.root, rewritten.definitions, whitespace)
    return SchemaGrammar(text, tuple(rewritten.not_enforced), whitespace, locator)


_ENDLESS = "nothing satisfies it: what it requires is false, or would contain itself without end"


def checked(document: Json, *, lenient: bool = False, watches: bool = True) -> Rewritten:
    """Rewrite and check a parsed schema. `watches`: whether its texts can be watched."""
    overlaps: dict[str, Pairs] = {}
    for _ in range(_MAX_ROUNDS):
        rewritten = rewrite(document, lenient=lenient, watches=watches, overlaps=overlaps)
        bound(rewritten.root, rewritten.definitions)
        close_narrow_ranges(rewritten.root, rewritten.definitions)
        found = _settle(rewritten)
        # Options that may hold together are rewritten so that they do not.
        if found.keys() <= overlaps.keys():
            break
        overlaps |= found
    if watches:
        rewritten.watches = _watches(rewritten, lenient=lenient)
    if rewritten.needs_u and may_respell_keys(rewritten.root, rewritten.definitions):
        pointer = rewritten.needs_u[0]
        raise NotEnforced(
            f"{pointer}: a control character needs a \\u escape, which is not written in objects"
            " that allow keys beyond the declared ones; say additionalProperties: false,"
            " and describe no such key by patternProperties",
            pointer,
        )
    return rewritten


def _settle(rewritten: Rewritten) -> dict[str, Pairs]:
    """Replace unproductive references by `false` and disjoint `oneOf` by `anyOf`.

    Returns the pointers of other `oneOf`s of few options, and which of these may hold together.
    Raises Contradiction.
    """
    if not prune(rewritten.root, rewritten.definitions):
        raise RefusalLocator(rewritten, Limits()).contradiction(_ENDLESS)
    others = open_one_ofs(rewritten.root, rewritten.definitions)
    return {
        below(rewritten.origins[id(part)], "oneOf"): pairs
        for part, pairs in others
        if id(part) in rewritten.origins and len(pairs) <= _MAX_PAIRS
    }


def _watches(rewritten: Rewritten, *, lenient: bool) -> tuple[Watch, ...]:
    """What is watched. Raises NotEnforced for what depends on the instance; or records it."""

    def refuse(schema: Json, keyword: str) -> None:
        pointer = below(rewritten.origins.get(id(schema), ""), keyword)
        if not lenient:
            raise NotEnforced(f"{pointer}: {NOT_WATCHED}", pointer)
        rewritten.not_enforced.append(pointer)

    return watches_of(rewritten.root, rewritten.definitions, refuse)


def _relax(rewritten: Rewritten, locator: RefusalLocator) -> None:
    """Drop the parts that the engine refuses, one by one, and record them."""
    for _ in range(_MAX_RELAXED):
        message = locator.message(rewritten.root)
        if not message or not isinstance(explain(message), NotEnforced):
            return
        part = locator.part(NotEnforced)
        pointer = rewritten.origins.get(id(part), "")
        given_up = [key for key in _GIVEN_UP if key in part]
        for key in given_up or [key for key in part if key != WATCH]:
            inner = part.pop(key)
            if key == "oneOf":
                part.setdefault("allOf", []).append({"anyOf": inner})
            rewritten.not_enforced.append(below(pointer, key))


# In the order of how often they fail; if none is present the whole part is dropped.
_GIVEN_UP = ("oneOf", "minProperties", "maxProperties", "patternProperties")
