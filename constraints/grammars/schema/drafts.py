"""The differences between the drafts of JSON Schema.

The draft is that of `$schema`, or 2020-12 if there is none or an unknown one. Keywords that a draft
does not have are enforced all the same if that makes the schema stricter, since their author means
them; if ignoring them would be stricter, they are refused.
"""

from dataclasses import dataclass
from types import MappingProxyType

from constraints.grammars.schema.reading import Json


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft.

    ref_is_alone:  keywords beside a `$ref` are ignored, an address among them
    has_switches:  exclusiveMinimum and exclusiveMaximum are true or false
    address:       the keyword that gives a schema its address
    lacks:         keywords of later drafts, which this one ignores
    """

    name: str
    ref_is_alone: bool = False
    has_switches: bool = False
    address: str = "$id"
    lacks: frozenset[str] = frozenset()

    def read(self, schema: dict[str, Json]) -> dict[str, Json]:
        """A schema without the keywords that this draft ignores beside a `$ref`."""
        if self.ref_is_alone and "$ref" in schema:
            return {"$ref": schema["$ref"]}
        return schema

    def ignores(self, keyword: str, value: Json) -> bool:
        """Whether this draft ignores a keyword of a later draft."""
        if keyword in ("exclusiveMinimum", "exclusiveMaximum"):
            return self.has_switches and not isinstance(value, bool)
        return keyword in self.lacks


def draft_of(schema: Json, default: Draft | None = None) -> Draft:
    """The draft that a schema names; `default`, or the newest, if it is unknown."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    known = _DRAFTS.get(named.removesuffix("#")) if isinstance(named, str) else None
    return known or default or _NEWEST


_SINCE_2020 = frozenset(("prefixItems",))
_SINCE_2019 = _SINCE_2020 | {"dependentRequired", "dependentSchemas", "unevaluatedProperties"}
_SINCE_2019 |= {"unevaluatedItems"}
_SINCE_7 = _SINCE_2019 | {"if"}
_SINCE_6 = _SINCE_7 | {"const", "contains", "propertyNames"}
_SINCE_4 = _SINCE_6 | {"allOf", "anyOf", "oneOf", "not", "required", "multipleOf"}
_SINCE_4 |= {"minProperties", "maxProperties"}
_NEWEST = Draft("2020-12")
_DRAFTS = MappingProxyType(
    {
        "https://json-schema.org/draft/2020-12/schema": _NEWEST,
        "https://json-schema.org/draft/2019-09/schema": Draft("2019-09", lacks=_SINCE_2020),
        "http://json-schema.org/draft-07/schema": Draft("draft 7", True, lacks=_SINCE_2019),
        "http://json-schema.org/draft-06/schema": Draft("draft 6", True, lacks=_SINCE_7),
        "http://json-schema.org/draft-04/schema": Draft("draft 4", True, True, "id", _SINCE_6),
        "http://json-schema.org/draft-03/schema": Draft("draft 3", True, True, "id", _SINCE_4),
    }
)
