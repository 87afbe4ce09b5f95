"""Formats as masks assert them, for the `jsonschema` package."""

import json
from decimal import Decimal
from functools import lru_cache

import jsonschema

from constraints.grammars.engine import GrammarLanguage
from constraints.grammars.exact_numbers import without_exponent
from constraints.grammars.json_schema import prepare
from constraints.grammars.limits import LIMITS
from constraints.grammars.schema import formats
from constraints.grammars.schema.reading import Json
from constraints.guiding.alphabet import byte_vocabulary, in_bytes
from constraints.spec import ConstraintSpec, Kind


class MaskFormats(jsonschema.FormatChecker):
    """Asks the engine; takes milliseconds for a format that was not asked for before."""

    def check(self, instance: Json, format: Json) -> None:
        """Raises jsonschema.FormatError. `instance` is a value of `exact_numbers.loads`."""
        if isinstance(instance, str):
            text = json.dumps(instance, ensure_ascii=False)
        elif isinstance(instance, int | Decimal) and not isinstance(instance, bool):
            text = without_exponent(Decimal(instance))
        else:
            return
        if not text or format not in formats.KNOWN:
            return
        tokens = [*text.encode(errors="surrogatepass"), *byte_vocabulary().end_ids[:1]]
        if _language(format).matcher().num_legal(tokens) < len(tokens):
            raise jsonschema.FormatError(f"{instance!r} is not a {format!r}")


@lru_cache(maxsize=64)
def _language(name: str) -> GrammarLanguage:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps({"format": name}))
    limits = LIMITS[Kind.JSON_SCHEMA]
    grammar = prepare(spec, limits)
    return GrammarLanguage(byte_vocabulary(), in_bytes(grammar.text), limits, grammar.explain)
