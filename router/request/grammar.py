"""Grammars as clients write them, checked as far as their text alone allows.

Whether a schema, a regular expression or a Lark grammar compiles is checked by workers. The types
are TGI's (`json`, `json_object`, `regex`, `json_schema`) and ours (`choice`, `lark`, `gbnf`,
`where`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import orjson

from constraints.spec import ConstraintSpec, Kind, Whitespace
from router.request.errors import InvalidRequest, wrong
from router.request.request import Constraint

GRAMMAR_TYPES: Mapping[str, Kind] = MappingProxyType(
    {
        "json": Kind.JSON_SCHEMA,
        "json_object": Kind.JSON_SCHEMA,
        "json_schema": Kind.JSON_SCHEMA,
        "regex": Kind.REGEX,
        "choice": Kind.CHOICE,
        "lark": Kind.LARK,
        "gbnf": Kind.GBNF,
        "where": Kind.WHERE,
    }
)


# JSON, and grammars that may have some inside.
_SPACED = (Kind.JSON_SCHEMA, Kind.LARK)


@dataclass(frozen=True, slots=True)
class RawGrammar:
    """A grammar as it came: `kind` is known, `value` is any JSON.

    `whitespace`, `lenient` and `cuts` are those of `ConstraintSpec` and `Constraint`; None: unset.
    """

    kind: Kind
    value: object
    whitespace: Whitespace | None = None
    lenient: bool | None = None
    cuts: bool | None = None

    def constraint(self, name: str) -> Constraint:
        """The constraint; `name` is the parameter's, for errors. Raises InvalidRequest."""
        for word, value, kinds in (
            ("whitespace", self.whitespace, _SPACED),
            ("lenient", self.lenient, (Kind.JSON_SCHEMA,)),
        ):
            if value and self.kind not in kinds:
                rule = f"`{word}` is said of JSON, and this is `{self.kind.value}`"
                raise _invalid(name, rule, value)
        spec = ConstraintSpec(
            self.kind,
            self._text(name),
            whitespace=self.whitespace or Whitespace.FLEXIBLE,
            lenient=bool(self.lenient),
        )
        return Constraint(spec, cuts=bool(self.cuts))

    def _text(self, name: str) -> str:
        if self.kind is Kind.JSON_SCHEMA:
            return self._schema(name)
        if self.kind is Kind.CHOICE:
            return self._choices(name)
        if not isinstance(self.value, str) or not self.value:
            rule = f"the value of `{self.kind.value}` must be a string, not empty"
            raise _invalid(name, rule, self.value)
        return self.value

    def _schema(self, name: str) -> str:
        """Any schema will do, with `properties` (which TGI insists on) or without.

        A string is kept as it is written: a key that stands twice in it is refused when it is
        compiled. In an object the body's parser has kept the last one.
        """
        written = schema = self.value
        if isinstance(written, str):
            try:
                schema = orjson.loads(written)
            except orjson.JSONDecodeError as error:
                rule = f"the value is a string that is not JSON: {error}"
                raise _invalid(name, rule, written) from error
        if not isinstance(schema, dict | bool):
            rule = (
                "the value must be a JSON schema: an object, true or false, or a string that holds"
                " one"
            )
            raise _invalid(name, rule, schema)
        return written.strip() if isinstance(written, str) else orjson.dumps(schema).decode()

    def _choices(self, name: str) -> str:
        choices = self.value
        rule = "the value of `choice` must be a list of strings, at least one"
        if not isinstance(choices, list) or not choices:
            raise _invalid(name, rule, choices)
        for choice in choices:
            if not isinstance(choice, str):
                raise _invalid(name, rule, choice)
        return orjson.dumps(list(dict.fromkeys(choices))).decode()


def _invalid(name: str, rule: str, value: object) -> InvalidRequest:
    return wrong(name, f"is not valid: {rule}", value)
