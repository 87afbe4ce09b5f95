"""Writes a grammar of terminals in the notation of the engine."""

from collections.abc import Mapping

from constraints.errors import TooComplex
from constraints.grammars import patterns
from constraints.grammars.gbnf.terms import (
    Alternation,
    CharSet,
    Name,
    Repetition,
    Sequence,
    Term,
    Terminal,
    Text,
    choice,
    sequence,
)
from constraints.grammars.regex import written

# The engine counts symbols in 16 bits.
_MAX_TERMS = 60_000


def write(found: Mapping[str, Term], rules: Mapping[str, Term], root: str) -> str:
    """The grammar text from `start` on; `rules`: those that terminals use."""
    return _Writer(found, rules).all(root)


class _Writer:
    """Writes the rules, and each terminal once."""

    def __init__(self, found: Mapping[str, Term], rules: Mapping[str, Term]) -> None:
        self._found = found
        self._rules = rules
        self._names = {name: f"r{index}" for index, name in enumerate(found)}
        self._terminals: dict[str, str] = {}
        self._num_terms = 0

    def all(self, root: str) -> str:
        lines = [f"start: {self._names[root]}"]
        for name, term in self._found.items():
            lines.append(f"{self._names[name]}: {self._rule(term)}")
        for pattern, name in self._terminals.items():
            lines.append(f"{name}: /{pattern}/")
        return "\n".join(lines) + "\n"

    def _rule(self, term: Term) -> str:
        self._num_terms += 1
        if self._num_terms > _MAX_TERMS:
            raise TooComplex(f"a grammar of more than {_MAX_TERMS} parts that are followed apart")
        match term:
            case Terminal():
                return self._terminal(term)
            case Name(name):
                return self._names[name]
            case Sequence(parts):
                return f"({' '.join(map(self._rule, parts))})"
            case Alternation(options):
                return f"({' | '.join(map(self._rule, options))})"
            case Repetition(part, min_count, max_count):
                return f"({self._rule(part)}){_bounds(min_count, max_count)}"
            case _:
                return '""'

    def _terminal(self, terminal: Terminal) -> str:
        """The name of a terminal; a nullable one is optional: the engine allows no empty ones."""
        inner, is_empty = self._filled(terminal.term)
        if inner is None:
            return '""'
        pattern = written(self._pattern(inner))
        name = self._terminals.setdefault(pattern, f"T{len(self._terminals)}")
        return f"{name}?" if is_empty else name

    def _filled(self, term: Term) -> tuple[Term | None, bool]:
        """The non-empty texts of a term (None: there are none), and whether it is nullable."""
        match term:
            case Text(text):
                return term if text else None, not text
            case Name(name):
                return self._filled(self._rules[name])
            case Alternation(options):
                both = [self._filled(option) for option in options]
                kept = [part for part, _ in both if part is not None]
                return choice(kept) if kept else None, any(is_empty for _, is_empty in both)
            case Sequence(parts):
                return self._filled_sequence(parts)
            case Repetition(part, min_count, max_count):
                filled, is_empty = self._filled(part)
                is_empty = is_empty or min_count == 0
                if filled is None:
                    return None, True
                min_count = 1 if is_empty else min_count
                is_once = min_count == max_count == 1
                return filled if is_once else Repetition(filled, min_count, max_count), is_empty
            case _:
                return term, False

    def _filled_sequence(self, parts: tuple[Term, ...]) -> tuple[Term | None, bool]:
        """A sequence without its empty text: one part is not empty, those behind it are free."""
        options: list[Term] = []
        for index, part in enumerate(parts):
            filled, is_empty = self._filled(part)
            if filled is not None:
                options.append(sequence((filled, *parts[index + 1 :])))
            if not is_empty:
                return choice(options), False
        return choice(options) if options else None, True

    def _pattern(self, term: Term) -> patterns.Pattern:
        match term:
            case CharSet(ranges):
                return patterns.Chars(ranges)
            case Text(text):
                return patterns.Concat(
                    tuple(patterns.Chars(((ord(char), ord(char)),)) for char in text)
                )
            case Name(name):
                return self._pattern(self._rules[name])
            case Sequence(parts):
                return patterns.Concat(tuple(map(self._pattern, parts)))
            case Alternation(options):
                return patterns.Choice(tuple(map(self._pattern, options)))
            case Repetition(part, min_count, max_count):
                return patterns.Repeat(self._pattern(part), min_count, max_count)
        raise AssertionError("no terminal stands in a terminal")


def _bounds(min_count: int, max_count: int | None) -> str:
    match min_count, max_count:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
    return f"{{{min_count},{'' if max_count is None else max_count}}}"
