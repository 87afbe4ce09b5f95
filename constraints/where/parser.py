"""Parses expressions: recursive descent over the grammar in docs/constraints.md.

    or -> and -> not -> comparison -> operand -> call | list | literal | name | "(" or ")"

The semantics are in functions.py. The lexer has no grammar; its literals are Python's: strings in
quotes of all four kinds with escapes or raw, whole decimal numbers. The Cursor is the parser's
position in its text: tokens, limits, errors, and hints where the syntax is another language's.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from constraints.errors import Malformed, TooComplex, complaint, nearest, short
from constraints.where.functions import (
    FUNCTIONS,
    Function,
    Integer,
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
    distinct,
    find,
)
from constraints.where.terms import And, Constant, Expression, Not, Or, Relation, StopsBefore

# Numbers are compared as 64-bit integers.
MAX_DIGITS = 18

# Keywords by spelling; both spellings of one have the same value.
KEYWORDS = {
    **{word: word for word in ("and", "or", "not", "in", "True", "False")},
    **{word.upper(): word for word in ("and", "or", "not", "in")},
}


class TokenKind(Enum):
    """The kind of a token."""

    NAME = "a name"
    KEYWORD = "a keyword"
    NUMBER = "a number"
    STRING = "a string"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its place: `text` is text[start:end], `value` the value of a literal."""

    kind: TokenKind
    text: str
    start: int
    end: int
    value: str | int | None = None


_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"[0-9][0-9_]*(?:\.[0-9]*)?(?:[^\W_]\w*)?")
_SIGN = re.compile(r"<=|>=|==|!=|[<>()\[\]{},.\-]")
_STRING = re.compile(
    r"""(?P<prefix>[A-Za-z]{0,2})(?P<quote>'''|\"""|'|")""",
)
# The content of a string up to its closing quote, by quote.
_BODIES = {
    "'": re.compile(r"(?:[^'\\\n]|\\.)*", re.DOTALL),
    '"': re.compile(r'(?:[^"\\\n]|\\.)*', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]|\\.|'(?!''))*", re.DOTALL),
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*', re.DOTALL),
}
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})"
    r"|U(?P<U>[0-9a-fA-F]{8})|N\{(?P<name>[^}]*)\}|(?P<char>.))",
    re.DOTALL,
)
_CHARS = {
    "\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n",
    "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_SURROGATE = re.compile("[\ud800-\udfff]")
# Signs of other languages, and their equivalents here.
_FOREIGN = {
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`, or `!=` to compare",
    "=": "write `==` to compare",
    ":": "a type is written as a condition: int(X), float(X) or regex(X, r'...')",
    "“": "strings stand in straight quotes, ' or \"",
    "”": "strings stand in straight quotes, ' or \"",
    "‘": "strings stand in straight quotes, ' or \"",
    "’": "strings stand in straight quotes, ' or \"",
    "`": "strings stand in straight quotes, ' or \"",
    "/": "a pattern is written regex(X, r'...')",
    "+": "there is no arithmetic",
    "*": "there is no arithmetic",
    "%": "there is no arithmetic",
    "#": "there are no comments",
    ";": "conditions are joined by `and` and `or`",
}


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text`, the last one of kind END. Raises Malformed."""
    position = 0
    while True:
        position = _skip(_SPACE, text, position)
        if position == len(text):
            break
        token = _token(text, position)
        yield token
        position = token.end
    yield Token(TokenKind.END, "", position, position)


def _token(text: str, start: int) -> Token:
    string = _STRING.match(text, start)
    if string:
        return _string(text, string)
    name = _NAME.match(text, start)
    if name:
        kind = TokenKind.KEYWORD if name[0] in KEYWORDS else TokenKind.NAME
        return Token(kind, name[0], start, name.end())
    number = _NUMBER.match(text, start)
    if number:
        return _number(text, number)
    sign = _SIGN.match(text, start)
    if sign:
        return Token(TokenKind.SIGN, sign[0], start, sign.end())
    raise complaint(text, start, start + 1, _strange(text[start]), _FOREIGN.get(text[start]))


def _number(text: str, match: re.Match[str]) -> Token:
    written = match[0]
    if not re.fullmatch(r"[0-9]+(?:_[0-9]+)*", written):
        raise complaint(text, match.start(), match.end(), f"`{short(written)}` is no whole number")
    digits = written.replace("_", "")
    if len(digits) > MAX_DIGITS:
        raise complaint(
            text, match.start(), match.end(), f"a number has at most {MAX_DIGITS} digits"
        )
    return Token(TokenKind.NUMBER, written, match.start(), match.end(), int(digits))


def _string(text: str, opening: re.Match[str]) -> Token:
    start = opening.start()
    quote = opening["quote"]
    prefix = opening["prefix"].lower()
    if prefix not in ("", "r", "u"):
        raise complaint(
            text,
            start,
            opening.end(),
            f"a string has no prefix `{opening['prefix']}`",
            'write "..." or, without escapes, r"..."',
        )
    body_end = _skip(_BODIES[quote], text, opening.end())
    if not text.startswith(quote, body_end):
        raise complaint(text, start, opening.end(), f"this string is not closed by {quote}")
    body = text[opening.end() : body_end]
    end = body_end + len(quote)
    value = body if prefix == "r" else _unescape(text, body, opening.end())
    surrogate = _SURROGATE.search(value)
    if surrogate:
        raise complaint(
            text,
            start,
            end,
            f"the string has half a character, \\u{ord(surrogate[0]):04x}, which is no text",
            'write characters beyond \\uffff as "\\U0001f600"',
        )
    return Token(TokenKind.STRING, text[start:end], start, end, value)


def _unescape(text: str, body: str, offset: int) -> str:
    """The value of `body`, which begins at text[offset]."""

    def meant(escape: re.Match[str]) -> str:
        if escape["char"] is not None:
            if escape["char"] in "xuUN":
                raise wrong(escape, "has too few digits or no name")
            # As in Python, a backslash before any other character is a backslash.
            return _CHARS.get(escape["char"], escape[0])
        if escape["name"] is not None:
            try:
                return unicodedata.lookup(escape["name"])
            except KeyError:
                raise wrong(escape, "names no character") from None
        code = int(escape["octal"], 8) if escape["octal"] else int(_hex(escape), 16)
        if code > 0x10FFFF:
            raise wrong(escape, "is beyond the last character, \\U0010ffff")
        return chr(code)

    def wrong(escape: re.Match[str], what: str) -> Exception:
        return complaint(
            text,
            offset + escape.start(),
            offset + escape.end(),
            f"the escape {short(escape[0])} {what}",
        )

    return _ESCAPE.sub(meant, body)


def _hex(escape: re.Match[str]) -> str:
    return escape["x"] or escape["u"] or escape["U"]


def place_in(written: str, offset: int | None) -> tuple[int, int]:
    """The place of a character of a literal's value in its source; the whole literal if unclear."""
    opening = _STRING.match(written)
    is_raw = "\\" not in written or (opening is not None and opening["prefix"] in ("r", "R"))
    if offset is None or opening is None or not is_raw or not written.endswith(opening["quote"]):
        return 0, len(written)
    start = min(opening.end() + offset, len(written) - 1)
    return start, start + 1


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _strange(char: str) -> str:
    shown = char if char.isprintable() else f"\\u{ord(char):04x}"
    return f"`{shown}` has no meaning here"


MAX_TEXT_LEN = 100_000  # characters
MAX_DEPTH = 64  # parentheses, calls and `not` within each other
MAX_TERMS = 1_000  # comparisons and calls

# Operators of other languages, and what to write here instead.
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


class Cursor:
    """Reads one text token by token. Every method may raise Malformed.

    token: the next one
    end:   the end of the one before it
    """

    def __init__(self, text: str) -> None:
        """Raises TooComplex for a text that is too long."""
        if len(text) > MAX_TEXT_LEN:
            raise TooComplex(
                f"a where expression has at most {MAX_TEXT_LEN} characters, this one {len(text)}"
            )
        self._text = text
        self._tokens = tokens(text)
        self._depth = 0
        self._num_terms = 0
        self.end = 0
        self.token = next(self._tokens)

    def is_at_end(self) -> bool:
        return self.token.kind is TokenKind.END

    def at(self, written: str) -> bool:
        """Whether this keyword, name or sign is next."""
        token = self.token
        if token.kind is TokenKind.KEYWORD:
            return KEYWORDS[token.text] == written
        return token.text == written and token.kind is not TokenKind.STRING

    def accept(self, written: str) -> bool:
        """Consume this keyword, name or sign if it is next."""
        if not self.at(written):
            return False
        self.advance()
        return True

    def advance(self) -> None:
        """Consume the next token."""
        self.end = self.token.end
        self.token = next(self._tokens)

    def enter(self) -> None:
        """Enter a nesting level; `leave` leaves it. Raises TooComplex."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooComplex(
                f"position {self.token.start}: parentheses, calls and `not` stand at most"
                f" {MAX_DEPTH} deep within each other"
            )

    def leave(self) -> None:
        self._depth -= 1

    def count(self) -> None:
        """Count a comparison or call. Raises TooComplex."""
        self._num_terms += 1
        if self._num_terms > MAX_TERMS:
            raise TooComplex(
                f"position {self.token.start}: a where expression has at most {MAX_TERMS}"
                " comparisons and calls"
            )

    def complaint(self, token: Token, what: str, hint: str | None = None) -> Malformed:
        return complaint(self._text, token.start, token.end, what, hint)

    def unknown_function(self, name: Token) -> Malformed:
        """The error about the name of a function."""
        hint = _ELSEWHERE.get(name.text.lower())
        if hint is None:
            close = nearest(name.text, FUNCTIONS)
            hint = f"did you mean `{close}`?" if close else f"known: {', '.join(FUNCTIONS)}"
        return self.complaint(name, f"`{short(name.text)}` is no function", hint)

    def unexpected(self, expected: str, usage: str | None = None) -> Malformed:
        """The error about the next token, where something else was expected."""
        token = self.token
        hint = f"expected {expected}" + (f", as in {usage}" if usage else "")
        if token.kind is TokenKind.END:
            return self.complaint(token, "the expression ends too early", hint)
        reason = self._reason(token)
        return self.complaint(token, f"`{short(token.text)}` is not expected here", reason or hint)

    def _reason(self, token: Token) -> str | None:
        """A hint about what was probably meant, if known."""
        if token.kind is TokenKind.NAME:
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


# The value of a name that is known before generation.
Value = str | int | Sequence[str]

_RELATIONS = {relation.value: relation for relation in Relation}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class _Placed:
    """An operand that was read from text[start:end]."""

    operand: Operand
    start: int
    end: int


def parse(text: str, *, values: Mapping[str, Value] | None = None) -> Expression:
    """Parse an expression.

    values: names that are known before generation, such as earlier outputs; any other name is the
            output
    Raises Malformed, which says where and what was expected, and TooComplex.
    """
    return _Parser(text, values or {}).read()


class _Parser:
    """Parses one text."""

    def __init__(self, text: str, values: Mapping[str, Value]) -> None:
        self._cursor = Cursor(text)
        self._text = text
        self._values = values
        self._subject: str | None = None

    def read(self) -> Expression:
        if self._cursor.is_at_end():
            raise self._cursor.complaint(
                self._cursor.token, "the expression is empty", "as in len(X) < 100"
            )
        whole = self._either()
        if not self._cursor.is_at_end():
            raise self._cursor.unexpected("`and`, `or` or the end")
        return self._truth(whole).expression

    # Conditions

    def _either(self) -> _Placed:
        first = self._all()
        if not self._cursor.at("or"):
            return first
        alternatives = [self._truth(first)]
        while self._cursor.accept("or"):
            alternatives.append(self._truth(self._all()))
        for alternative in alternatives:
            self._refuse_ending(alternative, "or")
        return self._placed(Truth(Or(_expressions(alternatives))), first.start)

    def _all(self) -> _Placed:
        first = self._negation()
        if not self._cursor.at("and"):
            return first
        conditions = [self._truth(first)]
        while self._cursor.accept("and"):
            conditions.append(self._truth(self._negation()))
        return self._placed(_conjunction(conditions), first.start)

    def _negation(self) -> _Placed:
        start = self._cursor.token.start
        if not self._cursor.at("not"):
            return self._comparison()
        self._cursor.enter()
        self._cursor.advance()
        inner = self._truth(self._negation())
        self._cursor.leave()
        self._refuse_ending(inner, "not")
        return self._placed(Truth(Not(inner.expression)), start)

    def _comparison(self) -> _Placed:
        first = left = self._operand()
        conditions: list[Truth] = []
        relation = self._relation()
        while relation is not None:
            right = self._operand()
            conditions.append(self._compared(left, relation, right))
            left = right
            relation = self._relation()
        if not conditions:
            return first
        whole = conditions[0] if len(conditions) == 1 else _conjunction(conditions)
        return self._placed(whole, first.start)

    def _relation(self) -> str | None:
        """Read `in`, `not in` or a comparison sign; None: there is none."""
        token = self._cursor.token
        if token.text in _RELATIONS and token.kind is TokenKind.SIGN:
            self._cursor.advance()
            return token.text
        if self._cursor.accept("in"):
            return "in"
        if self._cursor.accept("not"):
            if not self._cursor.accept("in"):
                raise self._cursor.unexpected("`in` after `not`")
            return "not in"
        return None

    def _compared(self, left: _Placed, relation: str, right: _Placed) -> Truth:
        self._cursor.count()
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
        token = self._cursor.token
        match token.kind:
            case TokenKind.STRING:
                self._cursor.advance()
                return self._placed(Phrase(str(token.value)), token.start)
            case TokenKind.NUMBER:
                return self._number(token, 1)
            case TokenKind.NAME:
                return self._name()
            case TokenKind.KEYWORD if token.text in ("True", "False"):
                self._cursor.advance()
                return self._placed(Truth(Constant(token.text == "True")), token.start)
            case TokenKind.SIGN:
                return self._signed()
        raise self._cursor.unexpected("a condition or a value")

    def _signed(self) -> _Placed:
        token = self._cursor.token
        if token.text == "(":
            return self._group()
        if token.text in ("[", "{"):
            self._cursor.advance()
            return self._placed(self._list(_CLOSING[token.text], []), token.start)
        if token.text == "-":
            self._cursor.advance()
            if self._cursor.token.kind is TokenKind.NUMBER:
                return self._number(token, -1)
            raise self._cursor.unexpected("a number after `-`")
        raise self._cursor.unexpected("a condition or a value")

    def _number(self, first: Token, sign: int) -> _Placed:
        value = self._cursor.token.value
        assert isinstance(value, int)
        self._cursor.advance()
        return self._placed(Number(sign * value), first.start)

    def _group(self) -> _Placed:
        start = self._cursor.token.start
        self._cursor.enter()
        self._cursor.advance()
        if self._cursor.accept(")"):
            self._cursor.leave()
            return self._placed(Phrases(()), start)
        inner = self._either()
        if self._cursor.accept(","):
            self._cursor.leave()
            return self._placed(self._list(")", [self._phrase(inner)]), start)
        if not self._cursor.accept(")"):
            raise self._cursor.unexpected("`and`, `or` or `)`")
        self._cursor.leave()
        return self._placed(inner.operand, start)

    def _list(self, closing: str, values: list[str]) -> Phrases:
        """The rest of a list, behind its opening bracket or first comma."""
        while not self._cursor.accept(closing):
            values.append(self._phrase(self._operand()))
            if not self._cursor.at(closing) and not self._cursor.accept(","):
                raise self._cursor.unexpected(f"`,` or `{closing}`")
        return Phrases(distinct(tuple(values)) if closing == "}" else tuple(values))

    def _phrase(self, placed: _Placed) -> str:
        if isinstance(placed.operand, Phrase):
            return placed.operand.value
        what = f"a list holds strings, not {described(placed.operand)}"
        hint = (
            'numbers in texts are strings: "7"'
            if isinstance(placed.operand, Number | Integer)
            else None
        )
        raise complaint(self._text, placed.start, placed.end, what, hint)

    def _name(self) -> _Placed:
        token = self._cursor.token
        self._cursor.advance()
        if self._cursor.at("("):
            return self._call(token)
        if token.text in self._values:
            return self._placed(_operand_of(token.text, self._values[token.text]), token.start)
        function = find(token.text)
        if function and self._subject != token.text:
            raise self._cursor.complaint(
                token, f"`{token.text}` is a function", f"write {function.usage}"
            )
        if self._subject not in (None, token.text):
            raise self._strange_name(token)
        self._subject = token.text
        return self._placed(Subject(), token.start)

    def _call(self, name: Token) -> _Placed:
        function = find(name.text)
        if function is None:
            raise self._cursor.unknown_function(name)
        self._cursor.count()
        self._cursor.enter()
        self._cursor.advance()
        arguments: list[_Placed] = []
        while not self._cursor.accept(")"):
            arguments.append(self._operand())
            if not self._cursor.at(")") and not self._cursor.accept(","):
                raise self._cursor.unexpected("`,` or `)`", function.usage)
        self._cursor.leave()
        return self._placed(self._applied(function, name, arguments), name.start)

    def _applied(self, function: Function, name: Token, arguments: list[_Placed]) -> Operand:
        try:
            applied = function.apply(tuple(argument.operand for argument in arguments))
        except Mismatch as mismatch:
            start = name.start
            end = self._cursor.end
            if mismatch.argument is not None:
                place = arguments[min(mismatch.argument, len(arguments) - 1)]
                start, end = (
                    place.start + index
                    for index in place_in(self._text[place.start : place.end], mismatch.offset)
                )
            hint = mismatch.hint or f"as in {function.usage}"
            raise complaint(self._text, start, end, str(mismatch), hint) from None
        if isinstance(applied, Truth) and isinstance(applied.expression, StopsBefore):
            return Truth(applied.expression, ending=name.start)
        return applied

    # Errors

    def _truth(self, placed: _Placed) -> Truth:
        try:
            return condition(placed.operand)
        except Mismatch as mismatch:
            raise complaint(
                self._text, placed.start, placed.end, str(mismatch), mismatch.hint
            ) from None

    def _placed(self, operand: Operand, start: int) -> _Placed:
        return _Placed(operand, start, self._cursor.end)

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
        subject = str(self._subject)
        known = {name.lower(): name for name in (subject, *self._values)}
        close = nearest(token.text, known)
        listed = ", ".join(map(short, known.values()))
        return self._cursor.complaint(
            token,
            f"the expression is about `{short(subject)}`,"
            f" so `{short(token.text)}` stands for nothing",
            f"did you mean `{short(known[close])}`?" if close else f"known names: {listed}",
        )


def _expressions(truths: list[Truth]) -> tuple[Expression, ...]:
    return tuple(truth.expression for truth in truths)


def _conjunction(truths: list[Truth]) -> Truth:
    endings = (truth.ending for truth in truths if truth.ending is not None)
    return Truth(And(_expressions(truths)), ending=next(endings, None))


def _operand_of(name: str, value: Value) -> Operand:
    """The operand of a name. Raises TypeError for values of other types."""
    if isinstance(value, str):
        return Phrase(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Number(value)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return Phrases(tuple(value))
    raise TypeError(f"{name} is no string, whole number or list of strings: {type(value).__name__}")
