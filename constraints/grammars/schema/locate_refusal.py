"""Finds the part of a schema that the engine refuses, by compiling the parts one by one."""

import re
from time import thread_time

from llguidance import LLMatcher

from constraints.errors import ConstraintError, Contradiction, NotEnforced
from constraints.grammars.engine_messages import explain
from constraints.grammars.limits import Limits
from constraints.grammars.schema.conflict import conflicting
from constraints.grammars.schema.disjoint import OVERLAPPING
from constraints.grammars.schema.engine_options import grammar_of
from constraints.grammars.schema.reading import Json, at, below
from constraints.grammars.schema.rewriting import Rewritten
from constraints.spec import Whitespace

# The most CPU seconds, for messages only: first to find the place, then the conflict. A part takes
# some 100 us.
_MAX_TRIES = 300
_MAX_S = 0.3
_MAX_CONFLICT_S = 0.5
# Of more than these only the first are named in a message.
_MAX_NAMED = 20

# How the engine reports the place where it stopped.
_IN_DEFINITION = re.compile(r"while processing \S*#/\$defs/(\w+)")

# A part of the engine's message, the keywords concerned, and our wording.
_IN_OUR_WORDS = (
    (
        "oneOf constraints are not supported",
        ("oneOf",),
        OVERLAPPING,
    ),
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


class RefusalLocator:
    """Finds the part of a rewritten schema that a message is about."""

    def __init__(self, rewritten: Rewritten, limits: Limits) -> None:
        self.rewritten = rewritten
        self._limits = limits
        self._num_tries = 0
        self._spent_s = 0.0

    def error(self, message: str) -> ConstraintError:
        """The error for the engine's message about the whole schema."""
        error = explain(message)
        part = self.part(type(error))
        pointer = self._pointer(part)
        if isinstance(error, Contradiction):
            said = explain(self.message(part) or message)
            return self._contradiction(part, _cleaned(str(said)))
        if isinstance(error, NotEnforced):
            pointer = self._keyword(pointer, message)
        text = f"{pointer or 'the schema'}: {_cleaned(str(error))}"
        return NotEnforced(text, pointer) if isinstance(error, NotEnforced) else type(error)(text)

    def contradiction(self, what: str) -> Contradiction:
        """The error for an unsatisfiable schema; `what`: the message about a single part."""
        return self._contradiction(self.part(Contradiction), what)

    def _contradiction(self, part: Json, what: str) -> Contradiction:
        pointer = self._pointer(part)
        self._num_tries = 0
        self._spent_s = _MAX_S - _MAX_CONFLICT_S
        parts = conflicting(part, self._raw(pointer), self._origin, pointer, self._is_empty)
        if len(parts) > _MAX_NAMED:
            listed = ", ".join(f"`{each}`" for each in parts[:_MAX_NAMED])
            what = f"nothing satisfies all of {listed} and {len(parts) - _MAX_NAMED} others"
        elif len(parts) > 1:
            listed = ", ".join(f"`{each}`" for each in parts[:-1])
            what = f"nothing satisfies both {listed} and `{parts[-1]}`"
        return Contradiction(f"{pointer or 'the schema'}: {what}", parts)

    def _keyword(self, pointer: str, message: str) -> str:
        """The pointer of the keyword in the engine's message, if the schema has it."""
        raw = self._raw(pointer)
        for phrase, keywords, _ in _IN_OUR_WORDS:
            for keyword in keywords:
                if phrase in message and isinstance(raw, dict) and keyword in raw:
                    return below(pointer, keyword)
        return pointer

    def _raw(self, pointer: str) -> Json:
        """The value at a pointer in the schema as written."""
        try:
            return at(self.rewritten.document, pointer)
        except KeyError:
            return None

    def _origin(self, part: Json) -> str | None:
        return self.rewritten.origins.get(id(part))

    def _is_empty(self, part: Json) -> bool | None:
        """Whether nothing satisfies the part; None: out of time."""
        return None if self._is_out_of_time() else self._fails(part, Contradiction, set())

    def empty_definition(self) -> str | None:
        """The name of an unsatisfiable definition that makes the engine refuse the schema."""
        message = self.message(self.rewritten.root)
        match = _IN_DEFINITION.search(message)
        if match is None or not isinstance(explain(message), Contradiction):
            return None
        return match[1] if match[1] in self.rewritten.definitions else None

    def part(self, kind: type[ConstraintError]) -> Json:
        """The innermost part that fails on its own with the same kind of error."""
        part = self.rewritten.root
        seen: set[int] = set()
        while True:
            inner = next(
                (each for each in self._inside(part) if self._fails(each, kind, seen)), None
            )
            if inner is None:
                return part
            part = inner

    def _pointer(self, part: Json) -> str:
        return self.rewritten.origins.get(id(part), "")

    def _fails(self, part: Json, kind: type[ConstraintError], seen: set[int]) -> bool:
        if not isinstance(part, dict) or id(part) in seen or self._is_out_of_time():
            return False
        seen.add(id(part))
        self._num_tries += 1
        began = thread_time()
        message = self.message(part)
        self._spent_s += thread_time() - began
        return bool(message) and isinstance(explain(message), kind)

    def _is_out_of_time(self) -> bool:
        return self._num_tries > _MAX_TRIES or self._spent_s > _MAX_S

    def message(self, part: Json) -> str:
        """The engine's message about a part; "" if it accepts it."""
        grammar = grammar_of(part, self.rewritten.definitions, Whitespace.COMPACT)
        is_wrong, messages = LLMatcher.validate_grammar_with_warnings(
            grammar, limits=self._limits.for_engine()
        )
        return messages[0] if is_wrong else ""

    def _inside(self, part: Json) -> list[Json]:
        if not isinstance(part, dict):
            return []
        inside: list[Json] = []
        for key, value in part.items():
            match key:
                case "allOf" | "prefixItems":
                    inside.extend(value)
                case "anyOf" | "oneOf":
                    inside.extend(value)
                case "properties" | "patternProperties":
                    inside.extend(value.values())
                case "additionalProperties" | "items":
                    inside.append(value)
                case "$ref":
                    inside.append(self.rewritten.definitions[value.rpartition("/")[2]])
        return inside


def _cleaned(message: str) -> str:
    """The message without places in a text that the client never saw."""
    for phrase, _, words in _IN_OUR_WORDS:
        if phrase in message:
            return words
    lines = [line for line in message.splitlines() if "%llguidance" not in line]
    text = lines[0] if lines else message
    text = text.rpartition("failed to compile JSON schema: ")[2]
    return text.replace("Unsatisfiable schema", "nothing satisfies it")
