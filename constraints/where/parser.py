"""Reads expressions: recursive descent over the grammar in docs/constraints.md.

    or -> and -> not -> comparison -> operand -> call | list | literal | name | "(" or ")"

Meanings are in operands.py and functions.py; here are the grammar, the names and the limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from constraints.errors import Malformed, TooComplex
from constraints.where.complaint import complaint, nearest
from constraints.where.functions import FUNCTIONS, Function, find
from constraints.where.lexer import Kind, Token, tokens
from constraints.where.operands import (
    Mismatch,
    Number,
    Operand,
    Phrase,
    Phrases,
    Subject,
    Truth,
    compared,
    condition,
    contained,
    described,
)
from constraints.where.terms import (
    And,
    Constant,
    Expression,
    Not,
    Or,
    Relation,
    StopsBefore,
)

MAX_TEXT_LEN = 100_000  # characters
MAX_DEPTH = 64  # parentheses, calls and `not` within each other
MAX_TERMS = 1_000  # comparisons, calls and `not`

# What a name in an expression can stand for: a value that is known before generation.
Value = str | int | Sequence[str]

_RELATIONS = {relation.value: relation for relation in Relation}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# Of other languages, and what is said here instead.
_ELSEWHERE = {
    "startswith": "write starts_with(X, ...)",
    "endswith": "write ends_with(X, ...)",
    "split": "write len(words(X)) to count words",
    "count": 'a phrase can be wanted, "a" in X, but not counted',
    "isdigit": "write int(X)",
    "isnumeric": "write int(X)",
    "match": "write regex(X, r'...')",
    "type": "write int(X) or float(X)",
    "is": "write == or in",
    "escaped": "LMQL's ESCAPED changes no mask: leave it out",
    "erase": "LMQL's ERASE changes no mask: leave it out",
    "stop_at": "did you mean `stops_at`?",
    "contains": 'write "a" in X',
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the conjunction at the top, and how it was written."""

    expression: Expression
    source: str


@dataclass(frozen=True, slots=True)
class _Placed:
    """An operand that was read from text[start:end]."""

    operand: Operand
    start: int
    end: int


def parse(text: str, *, values: Mapping[str, Value] | None = None) -> Expression:
    """The expression that `text` writes.

    values: what names stand for that are known before generation, such as earlier outputs; any
            other name is the output
    Raises Malformed, which says where and what was expected, and TooComplex.
    """
    return _Parser(text, values or {}).read().expression


def parts(text: str, *, values: Mapping[str, Value] | None = None) -> tuple[Part, ...]:
    """The parts that `text` joins by `and` at its top, each with its source; one without any.

    Raises as `parse` does.
    """
    parser = _Parser(text, values or {})
    whole = parser.read()
    spans = parser.top_spans
    if not isinstance(whole.expression, And) or len(spans) != len(whole.expression.parts):
        return (Part(whole.expression, text.strip()),)
    return tuple(
        Part(expression, text[start:end])
        for expression, (start, end) in zip(whole.expression.parts, spans, strict=True)
    )


class _Parser:
    """Reads one text, once."""

    def __init__(self, text: str, values: Mapping[str, Value]) -> None:
        if len(text) > MAX_TEXT_LEN:
            raise TooComplex(
                f"a where expression has at most {MAX_TEXT_LEN} characters, this one {len(text)}"
            )
        self.top_spans: list[tuple[int, int]] = []
        self._text = text
        self._values = values
        self._tokens = tokens(text)
        self._subject: str | None = None
        self._depth = 0
        self._num_terms = 0
        self._end = 0
        self._token = next(self._tokens)

    def read(self) -> Truth:
        if self._is_at_end():
            raise self._complaint(self._token, "the expression is empty", "as in len(X) < 100")
        whole = self._either()
        if not self._is_at_end():
            raise self._unexpected("`and`, `or` or the end")
        return self._truth(whole)

    # Conditions

    def _either(self) -> _Placed:
        first = self._all()
        if not self._at("or"):
            return first
        alternatives = [self._truth(first)]
        while self._accept("or"):
            alternatives.append(self._truth(self._all()))
        for alternative in alternatives:
            self._refuse_ending(alternative, "or")
        return self._placed(Truth(Or(_expressions(alternatives))), first.start)

    def _all(self) -> _Placed:
        first = self._negation()
        if not self._at("and"):
            return first
        conditions, spans = [self._truth(first)], [(first.start, first.end)]
        while self._accept("and"):
            placed = self._negation()
            conditions.append(self._truth(placed))
            spans.append((placed.start, placed.end))
        if self._depth == 0:
            self.top_spans = spans
        return self._placed(_conjunction(conditions), first.start)

    def _negation(self) -> _Placed:
        start = self._token.start
        if not self._at("not"):
            return self._comparison()
        self._enter()
        self._advance()
        inner = self._truth(self._negation())
        self._depth -= 1
        self._refuse_ending(inner, "not")
        return self._placed(Truth(Not(inner.expression)), start)

    def _comparison(self) -> _Placed:
        first = left = self._operand()
        conditions: list[Truth] = []
        relation = self._relation()
        while relation is not None:
            right = self._operand()
            conditions.append(self._compared(left, relation, right))
            left, relation = right, self._relation()
        if not conditions:
            return first
        whole = conditions[0] if len(conditions) == 1 else _conjunction(conditions)
        return self._placed(whole, first.start)

    def _relation(self) -> str | None:
        """Reads `in`, `not in` or a sign of comparison; None where none stands."""
        token = self._token
        if token.text in _RELATIONS and token.kind is Kind.SIGN:
            self._advance()
            return token.text
        if self._accept("in"):
            return "in"
        if self._accept("not"):
            if not self._accept("in"):
                raise self._unexpected("`in` after `not`")
            return "not in"
        return None

    def _compared(self, left: _Placed, relation: str, right: _Placed) -> Truth:
        self._count()
        try:
            if relation in _RELATIONS:
                return Truth(compared(left.operand, _RELATIONS[relation], right.operand))
            term = contained(left.operand, right.operand)
        except Mismatch as mismatch:
            raise complaint(
                self._text, left.start, right.end, str(mismatch), mismatch.hint
            ) from None
        if relation == "in":
            return Truth(term)
        return Truth(Constant(not term.value) if isinstance(term, Constant) else Not(term))

    # Operands

    def _operand(self) -> _Placed:
        token = self._token
        match token.kind:
            case Kind.STRING:
                self._advance()
                return self._placed(Phrase(str(token.value)), token.start)
            case Kind.NUMBER:
                return self._number(token, 1)
            case Kind.NAME:
                return self._name()
            case Kind.KEYWORD if token.text in ("True", "False"):
                self._advance()
                return self._placed(Truth(Constant(token.text == "True")), token.start)
            case Kind.SIGN:
                return self._signed()
        raise self._unexpected("a condition or a value")

    def _signed(self) -> _Placed:
        token = self._token
        if token.text == "(":
            return self._group()
        if token.text in ("[", "{"):
            self._advance()
            return self._placed(self._list(_CLOSING[token.text], []), token.start)
        if token.text == "-":
            self._advance()
            if self._token.kind is Kind.NUMBER:
                return self._number(token, -1)
            raise self._unexpected("a number after `-`")
        raise self._unexpected("a condition or a value")

    def _number(self, first: Token, sign: int) -> _Placed:
        value = self._token.value
        assert isinstance(value, int)
        self._advance()
        return self._placed(Number(sign * value), first.start)

    def _group(self) -> _Placed:
        start = self._token.start
        self._enter()
        self._advance()
        if self._accept(")"):
            self._depth -= 1
            return self._placed(Phrases(()), start)
        inner = self._either()
        if self._accept(","):
            self._depth -= 1
            return self._placed(self._list(")", [self._phrase(inner)]), start)
        if not self._accept(")"):
            raise self._unexpected("`and`, `or` or `)`")
        self._depth -= 1
        return self._placed(inner.operand, start)

    def _list(self, closing: str, values: list[str]) -> Phrases:
        """What follows the opening or the first comma of a list, up to its end."""
        while not self._accept(closing):
            values.append(self._phrase(self._operand()))
            if not self._at(closing) and not self._accept(","):
                raise self._unexpected(f"`,` or `{closing}`")
        return Phrases(tuple(dict.fromkeys(values)))

    def _phrase(self, placed: _Placed) -> str:
        if isinstance(placed.operand, Phrase):
            return placed.operand.value
        what = f"a list holds strings, not {described(placed.operand)}"
        hint = 'numbers in texts are strings: "7"' if isinstance(placed.operand, Number) else None
        raise complaint(self._text, placed.start, placed.end, what, hint)

    def _name(self) -> _Placed:
        token = self._token
        self._advance()
        if self._at("("):
            return self._call(token)
        if token.text in self._values:
            return self._placed(_operand_of(token.text, self._values[token.text]), token.start)
        function = find(token.text)
        if function and self._subject != token.text:
            raise self._complaint(token, f"`{token.text}` is a function", f"write {function.usage}")
        if self._subject not in (None, token.text):
            raise self._strange_name(token)
        self._subject = token.text
        return self._placed(Subject(), token.start)

    def _call(self, name: Token) -> _Placed:
        function = find(name.text)
        if function is None:
            raise self._unknown_function(name)
        self._count()
        self._enter()
        self._advance()
        arguments: list[_Placed] = []
        while not self._accept(")"):
            arguments.append(self._operand())
            if not self._at(")") and not self._accept(","):
                raise self._unexpected("`,` or `)`", function.usage)
        self._depth -= 1
        return self._placed(self._applied(function, name, arguments), name.start)

    def _applied(self, function: Function, name: Token, arguments: list[_Placed]) -> Operand:
        try:
            applied = function.apply(tuple(argument.operand for argument in arguments))
        except Mismatch as mismatch:
            start, end = name.start, self._end
            if mismatch.argument is not None:
                place = arguments[min(mismatch.argument, len(arguments) - 1)]
                start, end = self._within(place, mismatch.offset)
            hint = mismatch.hint or f"as in {function.usage}"
            raise complaint(self._text, start, end, str(mismatch), hint) from None
        if isinstance(applied, Truth) and isinstance(applied.expression, StopsBefore):
            return Truth(applied.expression, ending=name.start)
        return applied

    def _within(self, place: _Placed, offset: int | None) -> tuple[int, int]:
        """The place of a character of a string's value, where the string writes it as itself."""
        written = self._text[place.start : place.end]
        opening = len(written) - len(written.lstrip("rRuU"))
        is_raw = "r" in written[:opening].lower() or "\\" not in written
        if offset is None or not is_raw or not written.endswith(("'", '"')):
            return place.start, place.end
        quote = written[opening]
        opening += 3 if written.startswith(quote * 3, opening) else 1
        start = min(place.start + opening + offset, place.end - 1)
        return start, start + 1

    # Tokens and limits

    def _truth(self, placed: _Placed) -> Truth:
        try:
            return condition(placed.operand)
        except Mismatch as mismatch:
            raise complaint(
                self._text, placed.start, placed.end, str(mismatch), mismatch.hint
            ) from None

    def _placed(self, operand: Operand, start: int) -> _Placed:
        return _Placed(operand, start, self._end)

    def _is_at_end(self) -> bool:
        return self._token.kind is Kind.END

    def _at(self, written: str) -> bool:
        return self._token.text == written and self._token.kind is not Kind.STRING

    def _accept(self, written: str) -> bool:
        if not self._at(written):
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        self._end = self._token.end
        self._token = next(self._tokens)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooComplex(
                f"position {self._token.start}: parentheses, calls and `not` stand at most"
                f" {MAX_DEPTH} deep within each other"
            )

    def _count(self) -> None:
        self._num_terms += 1
        if self._num_terms > MAX_TERMS:
            raise TooComplex(
                f"position {self._token.start}: a where expression has at most {MAX_TERMS}"
                " comparisons and calls"
            )

    # Errors

    def _complaint(self, token: Token, what: str, hint: str | None = None) -> Malformed:
        return complaint(self._text, token.start, token.end, what, hint)

    def _refuse_ending(self, truth: Truth, joined_by: str) -> None:
        if truth.ending is None:
            return
        raise complaint(
            self._text,
            truth.ending,
            truth.ending + len("stops_before"),
            f"stops_before cannot stand under `{joined_by}`",
            "it says how an output ends, which is neither true nor false;"
            " join it to the rest by `and`, or use stops_at",
        )

    def _strange_name(self, token: Token) -> Malformed:
        known = [str(self._subject), *self._values]
        close = nearest(token.text, [name.lower() for name in known])
        meant = next((name for name in known if name.lower() == close), None)
        hint = f"did you mean `{meant}`?" if meant else f"known names: {', '.join(known)}"
        return self._complaint(
            token,
            f"the expression is about `{self._subject}`, so `{token.text}` stands for nothing",
            hint,
        )

    def _unknown_function(self, name: Token) -> Malformed:
        hint = _ELSEWHERE.get(name.text.lower())
        if hint is None:
            close = nearest(name.text, FUNCTIONS)
            hint = f"did you mean `{close}`?" if close else f"known: {', '.join(FUNCTIONS)}"
        return self._complaint(name, f"`{name.text[:40]}` is no function", hint)

    def _unexpected(self, expected: str, usage: str | None = None) -> Malformed:
        token = self._token
        hint = f"expected {expected}" + (f", as in {usage}" if usage else "")
        if token.kind is Kind.END:
            return self._complaint(token, "the expression ends too early", hint)
        shown = token.text if len(token.text) <= 40 else token.text[:40] + "…"
        reason = self._reason(token)
        return self._complaint(token, f"`{shown}` is not expected here", reason or hint)

    def _reason(self, token: Token) -> str | None:
        """What a writer probably had in mind, where that is known."""
        if token.kind is Kind.NAME:
            if token.text.lower() in ("and", "or", "not", "in"):
                return f"did you mean `{token.text.lower()}`?"
            return _ELSEWHERE.get(token.text.lower())
        match token.text:
            case ".":
                method = next(self._tokens).text
                hint = _ELSEWHERE.get(method.lower())
                return f"there are no methods; {hint}" if hint else "there are no methods"
            case "-":
                return "there is no arithmetic"
            case "[":
                return "there are no subscripts"
        return None


def _expressions(truths: list[Truth]) -> tuple[Expression, ...]:
    return tuple(truth.expression for truth in truths)


def _conjunction(truths: list[Truth]) -> Truth:
    endings = (truth.ending for truth in truths if truth.ending is not None)
    return Truth(And(_expressions(truths)), ending=next(endings, None))


def _operand_of(name: str, value: Value) -> Operand:
    """The operand that a name stands for. Raises TypeError for values of other types."""
    if isinstance(value, str):
        return Phrase(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Number(value)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return Phrases(tuple(value))
    raise TypeError(f"{name} is no string, whole number or list of strings: {type(value).__name__}")
