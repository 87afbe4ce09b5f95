"""Keywords that combine schemas. Those that the engine lacks are rewritten as alternatives."""

from constraints.errors import NotEnforced
from constraints.grammars.schema.disjoint import OVERLAPPING, Pairs
from constraints.grammars.schema.negation import NoNegation
from constraints.grammars.schema.place import Handler, Place
from constraints.grammars.schema.reading import Json, below

# Each doubles the alternatives that the engine multiplies out.
_MAX_DEPENDENCIES = 6


def _reference(place: Place, value: Json, pointer: str) -> None:
    try:
        target = place.rewriter.resolve(value, place.pointer)
    except NotEnforced as error:
        place.rewriter.refuse(pointer, str(error))
    else:
        place.out["$ref"] = f"#/$defs/{place.rewriter.definition(target)}"


def _all_of(place: Place, value: Json, pointer: str) -> None:
    place.out["allOf"] = place.list(value, pointer)


def _any_of(place: Place, value: Json, pointer: str) -> None:
    place.out["anyOf"] = place.list(value, pointer)


def _one_of(place: Place, value: Json, pointer: str) -> None:
    """As it is, for later; or each option without what is one of the others as well."""
    options = place.list(value, pointer)
    pairs = place.rewriter.overlaps.get(pointer)
    if pairs is None:
        place.out["oneOf"] = options
        return
    try:
        alone = [_alone(place, value, index, pairs, pointer) for index in range(len(value))]
    except NoNegation:
        place.rewriter.refuse(pointer, OVERLAPPING)
    else:
        options = [
            {"allOf": [option, *without]} for option, without in zip(options, alone, strict=True)
        ]
    place.also.append({"anyOf": options})


def _alone(place: Place, value: Json, index: int, pairs: Pairs, pointer: str) -> list[Json]:
    """What an option has to be, too, so that none of the others holds. Raises NoNegation."""
    at_option = below(pointer, index)
    others = [other for other in range(len(value)) if {(index, other), (other, index)} & pairs]
    return [
        place.rewriter.schema(
            place.rewriter.opposite(value[other], at_option, value[index]), at_option
        )
        for other in others
    ]


def _not(place: Place, value: Json, pointer: str) -> None:
    negated = place.rewriter.negated(value, pointer)
    if negated is not None:
        place.more(negated, pointer)


def _if(place: Place, value: Json, pointer: str) -> None:
    then = place.schema.get("then", True)
    otherwise = place.schema.get("else", True)
    if then is True and otherwise is True:
        place.rewriter.probe(value, pointer)
        return
    negated = place.rewriter.negated(value, pointer)
    if negated is not None:
        met = {"allOf": [value, then]}
        unmet = {"allOf": [negated, otherwise]}
        place.more({"anyOf": [met, unmet]}, pointer)


def _branch(place: Place, value: Json, pointer: str) -> None:
    """`then` and `else` without `if` have no effect; they are only checked."""
    if "if" not in place.schema:
        place.rewriter.probe(value, pointer)


def _dependencies(place: Place, value: Json, pointer: str) -> None:
    if len(value) > _MAX_DEPENDENCIES:
        place.rewriter.refuse(
            pointer, f"more than {_MAX_DEPENDENCIES} dependencies of one object are not enforced"
        )
        return
    for name, needed in value.items():
        if isinstance(needed, list):
            met: Json = {"required": [name, *needed]}
        else:
            met = {"allOf": [{"required": [name]}, needed]}
        without = {"properties": {name: False}}
        place.more({"anyOf": [without, met]}, below(pointer, name))


HANDLERS: dict[str, Handler] = {
    "$ref": _reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    **dict.fromkeys(("then", "else"), _branch),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), _dependencies),
}
