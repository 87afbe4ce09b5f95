"""JSON schemas as grammars: all steps from the text to the engine's input.

The part of a schema that the engine refuses is found by compiling the parts one by one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import thread_time

from constraints.engine import error_of
from constraints.errors import ConstraintError, Contradiction, NotEnforced, TooComplex
from constraints.schema.closing_checks import judge_at_close, unjudged
from constraints.schema.grammar import (
    OVERLAPPING,
    WATCH,
    Pairs,
    all_parts,
    grammar_of,
    inside,
    may_respell_keys,
    open_one_ofs,
    prune,
    refusal_of,
)
from constraints.schema.handlers import HANDLERS, unorder
from constraints.schema.negation import LOGIC_HANDLERS
from constraints.schema.reading import Json, at, below, is_annotation, read, shown
from constraints.schema.rewriting import NOT_WATCHED, Rewriter, Rewritten, close_narrow_ranges
from constraints.schema.watched import Watch, Watched, bound, watches_of
from constraints.spec import ConstraintSpec

_HANDLERS = {**HANDLERS, **LOGIC_HANDLERS}
_MAX_SHOWN = 200


# The most CPU seconds for finding what the engine refuses. A part takes some 100 us.
_MAX_S = 0.3
# Of more than these only the first are named in a message.
_MAX_NAMED = 20

# A part of the engine's message, the keywords concerned, and our wording.
_IN_OUR_WORDS = (
    ("oneOf constraints are not supported", ("oneOf",), OVERLAPPING),
    (
        "circular references with sibling keys",
        ("$ref",),
        "a $ref that leads back to itself is not enforced beside other keywords",
    ),
    (
        "are not disjoint",
        ("patternProperties",),
        "patterns of patternProperties that overlap are not enforced",
    ),
    (
        "min/maxProperties only supported",
        ("minProperties", "maxProperties"),
        "minProperties and maxProperties are enforced only where every declared property is"
        " required",
    ),
    ("Regex is empty", (), "no text satisfies both its pattern and its length"),
)


def _error(rewritten: Rewritten, message: str) -> ConstraintError:
    """The error for the engine's message about a whole schema, with the place of its reason."""
    error = error_of(message)
    part = _innermost(rewritten, type(error))
    pointer = rewritten.origins.get(id(part), "")
    if isinstance(error, Contradiction):
        said = refusal_of(part, rewritten.definitions) or error
        return _contradiction(rewritten, part, _cleaned(str(said)))
    if isinstance(error, NotEnforced):
        raw = _raw(rewritten, pointer)
        found = [names for phrase, names, _ in _IN_OUR_WORDS if phrase in message]
        if isinstance(raw, dict):
            keywords = [name for names in found for name in names if name in raw]
            pointer = below(pointer, keywords[0]) if keywords else pointer
    text = f"{pointer or 'the schema'}: {_cleaned(str(error))}"
    return NotEnforced(text, pointer) if isinstance(error, NotEnforced) else type(error)(text)


def _contradiction(rewritten: Rewritten, part: Json, what: str) -> Contradiction:
    """The error for a part that nothing satisfies; `what`: of one that asserts a single thing."""
    pointer = rewritten.origins.get(id(part), "")
    raw = _raw(rewritten, pointer)
    raw = part if raw is None else raw
    said: list[Json] = []
    if isinstance(raw, dict):
        said += [{key: each} for key, each in raw.items() if not is_annotation(key)]
        said = [each for each in said if "allOf" not in each] + raw.get("allOf", [])
    parts = tuple(dict.fromkeys(shown(each, _MAX_SHOWN) for each in said or [raw]))
    if len(parts) > 1:
        others = f" and {len(parts) - _MAX_NAMED} others" if len(parts) > _MAX_NAMED else ""
        listed = ", ".join(f"`{each}`" for each in parts[:_MAX_NAMED])
        what = f"nothing satisfies all of {listed}{others}"
    return Contradiction(f"{pointer or 'the schema'}: {what}", parts)


def _raw(rewritten: Rewritten, pointer: str) -> Json:
    """The value at a pointer in the schema as written."""
    try:
        return at(rewritten.document, pointer)
    except KeyError:
        return None


def _innermost(
    rewritten: Rewritten, kind: type[ConstraintError], ends_s: float | None = None
) -> Json:
    """The innermost part that fails on its own with the same kind of error.

    ends_s: when no more parts are tried, in CPU seconds of this thread; None: in a while
    """
    definitions = rewritten.definitions
    last_s = thread_time() + _MAX_S if ends_s is None else ends_s
    seen: set[int] = set()

    def fails(part: Json) -> bool:
        if not isinstance(part, dict) or id(part) in seen or thread_time() > last_s:
            return False
        seen.add(id(part))
        return isinstance(refusal_of(part, definitions), kind)

    part = rewritten.root
    while isinstance(part, dict):
        referred = [definitions[part["$ref"].rpartition("/")[2]]] if "$ref" in part else []
        inner = next(filter(fails, [*referred, *inside(part)]), None)
        if inner is None:
            break
        part = inner
    return part


def _cleaned(message: str) -> str:
    """The message without places in a text that the client never saw."""
    for phrase, _, words in _IN_OUR_WORDS:
        if phrase in message:
            return words
    lines = [line for line in message.splitlines() if "%llguidance" not in line]
    text = lines[0] if lines else message
    text = text.rpartition("failed to compile JSON schema: ")[2]
    return text.replace("Unsatisfiable schema", "nothing satisfies it")


# The most parts that a lenient schema drops, one after the other.
_MAX_RELAXED = 50
# The most times that a schema is rewritten: a `oneOf` may be below another one.
_MAX_ROUNDS = 4
# The most pairs of options of a `oneOf` that are rewritten so as to exclude each other.
_MAX_PAIRS = 66


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """A schema, ready for the engine.

    text:         the grammar
    not_enforced: pointers of what it does not enforce; only notes unless it is lenient
    watch:        what a `WatchedLanguage` watches
    explain:      the error for a message of the engine, with a pointer if one is found
    """

    text: str
    not_enforced: tuple[str, ...]
    watch: str
    explain: Callable[[str], ConstraintError]


def prepare(spec: ConstraintSpec, *, judges: bool = False) -> SchemaGrammar:
    """Read a schema. Raises Malformed, NotEnforced, Contradiction, TooComplex.

    judges: whether what masks cannot keep of it is judged where a value ends; raises NotEnforced
            for what cannot be judged, too
    """
    document = read(spec.text)
    watches = not spec.is_part
    rewrite = relaxed if spec.lenient or judges else checked
    rewritten = rewrite(document, watches=watches)
    if spec.any_key_order:
        _watch_keys(rewritten, watches=watches)
    if watches:
        rewritten.watches = _watches(rewritten, lenient=spec.lenient or judges)
    if judges:
        pointer = unjudged(rewritten)
        if pointer is not None:
            what = f"{pointer or 'the schema'}: neither masks nor a judge of values can keep it"
            raise NotEnforced(what, pointer)
        rewritten.checked_at_close = judge_at_close(rewritten)
        for pointer in rewritten.checked_at_close:
            rewritten.not_enforced.pop(pointer, None)
        # With those that judge, and without what they judge instead.
        rewritten.watches = watches_of(
            rewritten.root, rewritten.definitions, lambda schema, keyword: None
        )
    if spec.any_key_order:
        _unorder(rewritten)
    text = grammar_of(rewritten.root, rewritten.definitions, spec.whitespace)
    is_asked = any(each.wanted or each.judged for each in rewritten.watches)
    asked = json.dumps(rewritten.document) if is_asked else ""
    watch = Watched(rewritten.watches, asked, rewritten.checked_at_close).written()
    return SchemaGrammar(text, tuple(rewritten.not_enforced), watch, partial(_error, rewritten))


def relaxed(document: Json, *, watches: bool = True) -> Rewritten:
    """All of a parsed schema that can be enforced, or its type. Raises Malformed, Contradiction."""
    try:
        rewritten = checked(document, lenient=True, watches=watches)
    except (NotEnforced, TooComplex):
        return _of_its_type(document)
    _relax(rewritten)
    refusal = refusal_of(rewritten.root, rewritten.definitions)
    return _of_its_type(document) if isinstance(refusal, NotEnforced | TooComplex) else rewritten


def _of_its_type(document: Json) -> Rewritten:
    """A schema of which no more is enforced than the type of the whole."""
    type_ = document.get("type") if isinstance(document, dict) else None
    rewritten = Rewriter({} if type_ is None else {"type": type_}, _HANDLERS).rewrite()
    return replace(
        rewritten,
        document=document,
        not_enforced={"": None},
        given_up={"": None},
        sources=[(rewritten.root, "", document)],
    )


_ENDLESS = "nothing satisfies it: what it requires is false, or would contain itself without end"


def checked(document: Json, *, lenient: bool = False, watches: bool = True) -> Rewritten:
    """Rewrite and check a parsed schema. `watches`: whether its texts can be watched."""
    overlaps: dict[str, Pairs] = {}
    for _ in range(_MAX_ROUNDS):
        rewriter = Rewriter(
            document, _HANDLERS, lenient=lenient, watches=watches, overlaps=overlaps
        )
        rewritten = rewriter.rewrite()
        bound(rewritten.root, rewritten.definitions)
        close_narrow_ranges(rewritten.root, rewritten.definitions)
        if not prune(rewritten.root, rewritten.definitions):
            raise _contradiction(rewritten, _innermost(rewritten, Contradiction), _ENDLESS)
        found = {
            below(rewritten.origins[id(part)], "oneOf"): pairs
            for part, pairs in open_one_ofs(rewritten.root, rewritten.definitions)
            if id(part) in rewritten.origins and len(pairs) <= _MAX_PAIRS
        }
        # Options that may hold together are rewritten so that they do not.
        if found.keys() <= overlaps.keys():
            break
        overlaps |= found
    if rewritten.needs_u and may_respell_keys(rewritten.root, rewritten.definitions):
        pointer = rewritten.needs_u[0]
        raise NotEnforced(
            f"{pointer}: a control character needs a \\u escape, which is not written in objects"
            " that allow keys beyond the declared ones; say additionalProperties: false,"
            " and describe no such key by patternProperties",
            pointer,
        )
    return rewritten


def _watches(rewritten: Rewritten, *, lenient: bool) -> tuple[Watch, ...]:
    """What is watched. Raises NotEnforced for what depends on the instance; or records it."""

    def refuse(schema: Json, keyword: str) -> None:
        pointer = below(rewritten.origins.get(id(schema), ""), keyword)
        if not lenient:
            raise NotEnforced(f"{pointer}: {NOT_WATCHED}", pointer)
        rewritten.give_up(pointer)

    return watches_of(rewritten.root, rewritten.definitions, refuse)


def _watch_keys(rewritten: Rewritten, *, watches: bool) -> None:
    """Have it watched that no key comes twice, and that those that are required do."""
    if not watches:
        raise NotEnforced(f"keys in any order: {NOT_WATCHED}", "")
    for part in all_parts(rewritten.root, rewritten.definitions):
        if part.keys() & {"properties", "required"}:
            part.setdefault(WATCH, {})["required"] = part.get("required", [])


def _unorder(rewritten: Rewritten) -> None:
    """Have the engine take keys in any order, in place. Raises NotEnforced, Contradiction."""
    # That a required key cannot be written shows in this order alone.
    refusal = refusal_of(rewritten.root, rewritten.definitions)
    if refusal is not None:
        raise _error(rewritten, str(refusal))
    for part in all_parts(rewritten.root, rewritten.definitions):
        unorder(part, rewritten.origins.get(id(part), ""))


def _relax(rewritten: Rewritten) -> None:
    """Drop the parts that the engine refuses, one by one, and record them."""
    ends_s = thread_time() + _MAX_S
    for _ in range(_MAX_RELAXED):
        if not isinstance(refusal_of(rewritten.root, rewritten.definitions), NotEnforced):
            return
        part = _innermost(rewritten, NotEnforced, ends_s)
        pointer = rewritten.origins.get(id(part), "")
        given_up = [key for key in _GIVEN_UP if key in part]
        for key in given_up or [key for key in part if key != WATCH]:
            inner = part.pop(key)
            if key == "oneOf":
                part.setdefault("allOf", []).append({"anyOf": inner})
            if key == "patternProperties":
                # They are no others.
                part.pop("additionalProperties", None)
            rewritten.give_up(below(pointer, key))


# In the order of how often they fail; if none is present the whole part is dropped.
_GIVEN_UP = ("oneOf", "minProperties", "maxProperties", "patternProperties")
