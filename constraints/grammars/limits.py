"""Limits of one constraint: text, compilation, one mask.

Fuel is the engine's own unit, about 50 000 a millisecond while compiling and 14 000 while making a
mask, so that a limit in fuel holds on any machine and under any load, as a limit in seconds cannot.
"""

from dataclasses import dataclass

from llguidance import LLParserLimits

from constraints.errors import TooComplex
from constraints.spec import Kind


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind of constraint.

    max_text_bytes:  of the constraint as it is written, in UTF-8
    compile_fuel:    to build the automaton's first expressions
    step_fuel:       for one mask or one token
    step_max_items:  parser items for one mask or one token
    max_states:      of a lexer; all outputs that share it add states; 1 to 2 kB each
    """

    max_text_bytes: int = 1_000_000
    compile_fuel: int = 5_000_000
    step_fuel: int = 500_000
    step_max_items: int = 50_000
    max_states: int = 60_000

    def check_text(self, kind: Kind, text: str) -> None:
        """Raises TooComplex where the constraint's own text is too long."""
        num_bytes = len(text.encode("utf-8", "surrogatepass"))
        if num_bytes > self.max_text_bytes:
            raise TooComplex(
                f"the {kind.value} has {num_bytes} bytes, and at most {self.max_text_bytes}"
                " are allowed"
            )

    def for_engine(self) -> LLParserLimits:
        return LLParserLimits(
            initial_lexer_fuel=self.compile_fuel,
            step_lexer_fuel=self.step_fuel,
            step_max_items=self.step_max_items,
            max_lexer_states=self.max_states,
            # Eager tables cost up to seconds for a large pattern and save only microseconds later.
            precompute_large_lexemes=False,
            # The engine's state would leak a request's text into messages and logs.
            verbose_errors=False,
        )


# Patterns and grammars need less text than schemas.
LIMITS: dict[Kind, Limits] = {
    Kind.JSON_SCHEMA: Limits(max_text_bytes=4_000_000),
    Kind.REGEX: Limits(max_text_bytes=100_000),
    Kind.LARK: Limits(max_text_bytes=1_000_000),
    Kind.GBNF: Limits(max_text_bytes=1_000_000),
    Kind.CHOICE: Limits(max_text_bytes=4_000_000),
    # Counters under a complement: the states are few, each is expensive.
    Kind.WHERE: Limits(max_text_bytes=100_000, step_fuel=5_000_000),
    Kind.TEXT: Limits(max_text_bytes=0),
}
