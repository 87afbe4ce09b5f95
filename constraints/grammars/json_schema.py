"""JSON schemas as grammars: the whole way from the text to what the engine is given."""

from dataclasses import dataclass

from constraints.errors import ConstraintError, NotEnforced
from constraints.grammars.limits import Limits
from constraints.grammars.messages import explain
from constraints.grammars.schema.disjoint import open_one_ofs
from constraints.grammars.schema.engine_options import grammar_of, may_respell_keys
from constraints.grammars.schema.locate_refusal import RefusalLocator
from constraints.grammars.schema.narrow_ranges import close_narrow_ranges
from constraints.grammars.schema.reading import Json, below, read
from constraints.grammars.schema.rewriting import Rewritten, rewrite
from constraints.grammars.schema.unproductive_definitions import prune
from constraints.spec import Whitespace

# Parts that a lenient schema gives up one after the other.
_MAX_RELAXED = 50


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """A schema, ready for the engine.

    text:          the grammar
    not_enforced:  pointers of what it does not hold; empty unless lenient
    """

    text: str
    not_enforced: tuple[str, ...]
    _whitespace: Whitespace
    _blame: RefusalLocator

    @property
    def rewritten(self) -> Rewritten:
        """The schema that the grammar was written from."""
        return self._blame.rewritten

    def explain(self, message: str) -> ConstraintError:
        """What the engine's message says of the schema, with a pointer where one is found."""
        return self._blame.error(message)

    def without_empty_definition(self) -> "SchemaGrammar | None":
        """The grammar after a definition that nothing satisfies became `false`, if there is one.

        The engine refuses a schema with such a definition even where it may be left out.
        """
        rewritten = self._blame.rewritten
        name = self._blame.empty_definition()
        if name is None:
            return None
        rewritten.definitions[name] = False
        _settle(rewritten)
        return _written(rewritten, self._whitespace, self._blame)


def prepare(text: str, whitespace: Whitespace, lenient: bool, limits: Limits) -> SchemaGrammar:
    """Read a schema. Raises Malformed, NotEnforced, Contradiction, TooComplex."""
    rewritten = checked(read(text), lenient=lenient)
    blame = RefusalLocator(rewritten, limits)
    if lenient:
        _relax(rewritten, blame)
    return _written(rewritten, whitespace, blame)


def _written(rewritten: Rewritten, whitespace: Whitespace, blame: RefusalLocator) -> SchemaGrammar:
    text = grammar_of(rewritten.root, rewritten.definitions, whitespace)
    return SchemaGrammar(text, tuple(rewritten.not_enforced), whitespace, blame)


_ENDLESS = "nothing satisfies it: what it requires is false, or would contain itself without end"


def checked(document: Json, *, lenient: bool) -> Rewritten:
    """A schema's value, rewritten and looked through."""
    rewritten = rewrite(document, lenient=lenient)
    close_narrow_ranges(rewritten.root, rewritten.definitions)
    _settle(rewritten)
    if rewritten.needs_u and may_respell_keys(rewritten.root, rewritten.definitions):
        pointer = rewritten.needs_u[0]
        raise NotEnforced(
            f"{pointer}: a control character needs a \\u escape, which is not written in objects"
            " that allow keys beyond the declared ones; say additionalProperties: false,"
            " and describe no such key by patternProperties",
            pointer,
        )
    return rewritten


def _settle(rewritten: Rewritten) -> None:
    """Make endless references `false` and exclusive options plain ones. Raises Contradiction."""
    if not prune(rewritten.root, rewritten.definitions):
        raise RefusalLocator(rewritten, Limits()).contradiction(_ENDLESS)
    open_one_ofs(rewritten.root, rewritten.definitions)


def _relax(rewritten: Rewritten, blame: RefusalLocator) -> None:
    """Give up what the engine will not have, part by part, and take note."""
    for _ in range(_MAX_RELAXED):
        message = blame.message(rewritten.root)
        if not message or not isinstance(explain(message), NotEnforced):
            return
        part = blame.part(NotEnforced)
        pointer = rewritten.origins.get(id(part), "")
        given_up = [key for key in _GIVEN_UP if key in part]
        for key in given_up or list(part):
            inner = part.pop(key)
            if key == "oneOf":
                part.setdefault("allOf", []).append({"anyOf": inner})
            rewritten.not_enforced.append(below(pointer, key))


# First what fails most often; without any of these the whole part goes.
_GIVEN_UP = ("oneOf", "minProperties", "maxProperties", "patternProperties")
