"""Parses expressions: the grammar in docs/constraints.md, read by Python's own parser.

Conditions are Python's but for AND, OR, NOT and IN in capitals, and line ends, which mean nothing.
So Python gets the same text on one line, with every character in its place: capitals are small,
names are ASCII, and strings have their length alone. Places in its tree are places in the text;
names and strings are read there. What no condition has, it never sees: other signs, other numbers.

What stands in a condition are operands, and functions that make operands of operands:

    Operand = Subject | TextParts | Measure | int | str | tuple[str, ...] | Expression

A wrong argument raises a Mismatch with its index, which becomes an error with its place.
"""

import ast
import re
from dataclasses import dataclass

from constraints.errors import Malformed, TooComplex, complaint, nearest, short
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    Not,
    OneOf,
    Or,
    Relation,
    StartsWith,
    StopsAt,
    StopsBefore,
    all_of,
)

MAX_TEXT_LEN = 100_000  # characters
MAX_DEPTH = 64  # conditions, calls and `not` within each other
MAX_TERMS = 1_000  # comparisons and calls
# Numbers are compared as 64-bit integers.
MAX_DIGITS = 18


class Mismatch(Exception):
    """Operands that cannot be combined in this way; `hint` says what is possible.

    argument: the index of the wrong argument, None: the whole expression
    offset:   the place in it, in characters of its value
    """

    def __init__(
        self,
        what: str,
        hint: str | None = None,
        argument: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(what)
        self.hint = hint
        self.argument = argument
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Subject:
    """The output."""


@dataclass(frozen=True, slots=True)
class TextParts:
    """The parts of the output, such as `words(X)`, which only `len(...)` can count."""

    measure: Measure
    name: str


Operand = Subject | TextParts | Measure | int | str | tuple[str, ...] | Expression

# What a relation is called where its sides are exchanged.
_MIRRORED = {
    Relation.LT: Relation.GT,
    Relation.LE: Relation.GE,
    Relation.GT: Relation.LT,
    Relation.GE: Relation.LE,
    Relation.EQ: Relation.EQ,
    Relation.NE: Relation.NE,
}


def _about(operand: Operand) -> tuple[str, str]:
    """The operand for an error message, and what it is for."""
    match operand:
        case Subject():
            usage = (
                'compare it, as in X == "yes" or X in ["a", "b"];'
                " len(X) is its length, int(X) its value as a number"
            )
            return "the output", usage
        case TextParts(name=name):
            return f"{name}(X)", f"write len({name}(X))"
        case Measure():
            return operand.value, f"compare it, as in {operand.value} < 40"
        case int():
            usage = 'compared with len(X) or int(X); numbers in texts are strings: "7"'
            return "a number", usage
        case str():
            return "a string", 'as in X == "yes" or "a" in X'
        case tuple():
            return "a list", 'as in X in ["a", "b"]; for one of several, "a" in X or "b" in X'
        case IsFloat():
            return "a condition", "only int(X) is compared with numbers"
    return "a condition", "conditions are joined by `and`, `or` and `not`"


def described(operand: Operand) -> str:
    """The operand for an error message."""
    return _about(operand)[0]


def _mismatch(left: Operand, verb: str, right: Operand) -> Mismatch:
    """The error that `left` cannot be combined with `right`; hints about both."""
    for operand in (left, right):
        if isinstance(operand, TextParts):
            return _alone(operand)
    usages = dict(map(_about, (left, right)))
    return Mismatch(
        f"{described(left)} cannot be {verb} {described(right)}",
        "\n".join(f"{operand}: {usage}" for operand, usage in usages.items()),
    )


def _alone(operand: Operand) -> Mismatch:
    what, usage = _about(operand)
    is_part = isinstance(operand, TextParts)
    return Mismatch(
        f"{what} {'can only be counted' if is_part else 'alone is no condition'}", usage
    )


def condition(operand: Operand) -> Expression:
    """The operand as a condition of its own. Raises Mismatch."""
    match operand:
        case Measure.INT:
            return IsInt()
        case TextParts() | Subject() | Measure() | int() | str() | tuple():
            raise _alone(operand)
    return operand


def compared(left: Operand, relation: Relation, right: Operand) -> Expression:
    """What `left relation right` means. Raises Mismatch."""
    is_equality = relation in (Relation.EQ, Relation.NE)
    match left, right:
        case Measure() as measure, int(bound):
            return Compare(measure, relation, bound)
        case int(bound), Measure() as measure:
            return Compare(measure, _MIRRORED[relation], bound)
        case (Subject(), str(value)) | (str(value), Subject()) if is_equality:
            equal = OneOf((value,))
            return equal if relation is Relation.EQ else Not(equal)
    verb = "compared with" if is_equality else f"compared by `{relation.value}` with"
    raise _mismatch(left, verb, right)


def distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def contained(left: Operand, right: Operand) -> Expression:
    """What `left in right` means. Raises Mismatch."""
    match left, right:
        case Subject(), tuple(values):
            return OneOf(distinct(values))
        case str(phrase), Subject():
            return Contains(phrase)
    raise _mismatch(left, "looked for in", right)


# The functions, and how they are used.
FUNCTIONS = {
    "len": "len(X), len(words(X)), len(sentences(X)) or len(tokens(X))",
    "words": "len(words(X))",
    "sentences": "len(sentences(X))",
    "tokens": "len(tokens(X))",
    "characters": "len(characters(X))",
    "chars": "len(chars(X))",
    "int": "int(X), alone or compared, as in 1 <= int(X) <= 5",
    "float": "float(X)",
    "starts_with": 'starts_with(X, "a"), starts_with(X, ["a", "b"])',
    "ends_with": 'ends_with(X, "a"), ends_with(X, ["a", "b"])',
    "stops_at": 'stops_at(X, "."), stops_at(X, ".", "!")',
    "stops_before": 'stops_before(X, "\\n"), stops_before(X, ".", "!")',
    "regex": "regex(X, r'[a-z]+')",
    "set": 'set(["a", "b"])',
}
# What those make whose only argument is the output.
_OF_OUTPUT: dict[str, Operand] = {
    "words": TextParts(Measure.WORDS, "words"),
    "sentences": TextParts(Measure.SENTENCES, "sentences"),
    "tokens": TextParts(Measure.TOKENS, "tokens"),
    "characters": TextParts(Measure.CHARS, "characters"),
    "chars": TextParts(Measure.CHARS, "chars"),
    "int": Measure.INT,
    "float": IsFloat(),
}
_WITH_PHRASES = ("starts_with", "ends_with", "stops_at", "stops_before")
Arguments = tuple[Operand, ...]


def function_of(name: str) -> str | None:
    """The function of that name, or of LMQL's name in capitals."""
    known = name.lower() in FUNCTIONS and name in (name.lower(), name.upper())
    return name.lower() if known else None


def applied(function: str, arguments: Arguments) -> Operand:
    """What a function makes of operands. Raises Mismatch."""
    num_wanted = 2 if function == "regex" else 1
    if len(arguments) < num_wanted:
        raise Mismatch("an argument is missing")
    if len(arguments) > num_wanted and function not in _WITH_PHRASES:
        raise Mismatch("this argument is one too many", argument=num_wanted)
    first = arguments[0]
    if function == "set":
        if not isinstance(first, tuple):
            raise Mismatch(f"a set is made of a list, not of {described(first)}", argument=0)
        return distinct(first)
    if function == "len":
        if isinstance(first, TextParts):
            return first.measure
        if not isinstance(first, Subject):
            raise Mismatch(f"{described(first)} has no length", argument=0)
        return Measure.CHARS
    if not isinstance(first, Subject):
        what = f"the first argument is the output, not {described(first)}"
        raise Mismatch(what, argument=0)
    match function:
        case "regex":
            return Matches(_pattern(arguments[1]))
        case "starts_with":
            return StartsWith(_phrases(arguments))
        case "ends_with":
            return EndsWith(_phrases(arguments))
        case "stops_at":
            return StopsAt(_stop_phrases(arguments))
        case "stops_before":
            return StopsBefore(_stop_phrases(arguments))
    return _OF_OUTPUT[function]


def _pattern(operand: Operand) -> str:
    if not isinstance(operand, str):
        raise Mismatch(f"the pattern is a string, not {described(operand)}", argument=1)
    try:
        re.compile(operand)
    except re.error as error:
        raise Mismatch(f"the pattern is wrong: {error.msg}", argument=1, offset=error.pos) from None
    except OverflowError:
        raise Mismatch("the pattern repeats something too often", argument=1) from None
    except RecursionError:
        raise Mismatch("the pattern is nested too deeply", argument=1) from None
    return operand


def _phrases(arguments: Arguments) -> tuple[str, ...]:
    """The arguments behind the output: strings, or one list of strings."""
    if len(arguments) < 2:
        raise Mismatch("the phrase is missing")
    if len(arguments) == 2 and isinstance(arguments[1], tuple):
        return distinct(arguments[1])
    phrases = []
    for index, phrase in enumerate(arguments[1:], start=1):
        if not isinstance(phrase, str):
            raise Mismatch(f"a phrase is a string, not {described(phrase)}", argument=index)
        phrases.append(phrase)
    return distinct(tuple(phrases))


def _stop_phrases(arguments: Arguments) -> tuple[str, ...]:
    phrases = _phrases(arguments)
    if not phrases:
        raise Mismatch("one phrase or more is needed to stop", argument=1)
    if "" in phrases:
        raise Mismatch("an empty phrase would stop every output at once", argument=1)
    return phrases


_PIECE = re.compile(
    r"""
    (?P<string> (?P<prefix> [A-Za-z]{0,2} )
        (?: ''' (?: [^'\\] | \\. | '(?!'') )* ''' | \""" (?: [^"\\] | \\. | "(?!"") )* \"""
        | ' (?: [^'\\\n] | \\. )* ' | " (?: [^"\\\n] | \\. )* " ))
    | (?P<name> [^\W\d]\w* )
    | (?P<number> [0-9][0-9_]*(?:\.[0-9]*)?(?:[^\W_]\w*)? )
    | (?P<space> \s+ )
    | (?P<sign> [<>=!]=|[<>()\[\]{},.\-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\n\\'\"abfnrtvxuUN01234567")
_WHOLE = re.compile(rf"(?:[0-9]_?){{0,{MAX_DIGITS - 1}}}[0-9]")
_NO_ASCII = re.compile(r"[^\x00-\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CAPITALS = frozenset({"AND", "OR", "NOT", "IN"})
# Signs of other languages, and their equivalents here.
_QUOTES = "strings stand in straight quotes, ' or \""
_FOREIGN = {
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`, or `!=` to compare",
    "=": "write `==` to compare",
    ":": "a type is written as a condition: int(X), float(X) or regex(X, r'...')",
    **dict.fromkeys("“”‘’`", _QUOTES),
    "/": "a pattern is written regex(X, r'...')",
    **dict.fromkeys("+*%", "there is no arithmetic"),
    "#": "there are no comments",
    ";": "conditions are joined by `and` and `or`",
}
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

_RELATIONS: dict[type[ast.cmpop], Relation] = {
    ast.Lt: Relation.LT,
    ast.LtE: Relation.LE,
    ast.Eq: Relation.EQ,
    ast.NotEq: Relation.NE,
    ast.GtE: Relation.GE,
    ast.Gt: Relation.GT,
}


def parse(text: str) -> Expression:
    """Parse an expression. Raises Malformed, which shows the place, and TooComplex."""
    if len(text) > MAX_TEXT_LEN:
        raise TooComplex(
            f"a where expression has at most {MAX_TEXT_LEN} characters, this one {len(text)}"
        )
    return _Parser(text).read()


class _Parser:
    """Parses one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._subject: str | None = None
        self._num_terms = 0
        # The end and the value of each string, by its place.
        self._strings: dict[int, tuple[int, str]] = {}
        # Blanks before the expression, which Python does not read.
        self._indent = len(text) - len(text.lstrip())

    def read(self) -> Expression:
        readable = self._readable().strip()
        if not readable:
            raise self._wrong(0, 0, "the expression is empty", "as in len(X) < 100")
        try:
            tree = ast.parse(readable, mode="eval")
        except SyntaxError as error:
            raise self._misread(error) from None
        except (RecursionError, MemoryError):
            raise _too_deep() from None
        return self._condition(tree.body, 0)

    # What Python reads

    def _readable(self) -> str:
        """The text as Python can read it. Raises Malformed."""
        parts = []
        position = 0
        while position < len(self._text):
            piece = _PIECE.match(self._text, position)
            if piece is None:
                raise self._strange(position)
            written = piece[0]
            match piece.lastgroup:
                case "string":
                    self._strings[position] = piece.end(), self._value(piece)
                    written = '"' + "_" * (len(written) - 2) + '"'
                case "name" if written in _CAPITALS:
                    written = written.lower()
                case "name":
                    written = _NO_ASCII.sub("_", written)
                case "number" if not _WHOLE.fullmatch(written):
                    what = f"`{short(written)}` is no whole number of at most {MAX_DIGITS} digits"
                    raise self._wrong(position, piece.end(), what)
                case "number":
                    written = str(int(written)).ljust(len(written))  # Python refuses leading zeros
                case "space":
                    written = " " * len(written)
            parts.append(written)
            position = piece.end()
        return "".join(parts)

    def _strange(self, position: int) -> Malformed:
        char = self._text[position]
        shown = char if char.isprintable() else f"\\u{ord(char):04x}"
        what = f"`{shown}` has no meaning here"
        if char in "'\"":
            what = f"this string is not closed by {char}"
        return self._wrong(position, position + 1, what, _FOREIGN.get(char))

    def _value(self, string: re.Match[str]) -> str:
        """The value of a string. Raises Malformed."""
        start, end = string.span()
        prefix = string["prefix"]
        if prefix.lower() not in ("", "r", "u"):
            what = f"a string has no prefix `{prefix}`"
            hint = 'write "..." or, without escapes, r"..."'
            raise self._wrong(start, start + len(prefix), what, hint)
        quoted = string[0].removeprefix(prefix)
        num_quotes = 3 if quoted.startswith(("'''", '"""')) else 1
        value = quoted[num_quotes:-num_quotes]
        try:
            if "\\" in value and prefix.lower() != "r":
                value = _unescaped(value)
        except UnicodeDecodeError as error:
            raise self._wrong(start, end, f"an escape is wrong: {error.reason}") from None
        if surrogate := _SURROGATE.search(value):
            what = f"the string has half a character, \\u{ord(surrogate[0]):04x}, which is no text"
            hint = 'write characters beyond \\uffff as "\\U0001f600"'
            raise self._wrong(start, end, what, hint)
        return value

    def _misread(self, error: SyntaxError) -> Malformed | TooComplex:
        """The error where Python expects something else."""
        if error.msg.startswith("too many nested"):
            return _too_deep()
        # Python says 0 of the end.
        position = self._indent + error.offset - 1 if error.offset else len(self._text)
        piece = _PIECE.match(self._text, position)
        if piece is None or piece.lastgroup == "space":
            end = len(self._text)
            what = "the expression ends too early"
            return self._wrong(end, end, what, "expected a condition or a value")
        word = piece[0]
        what = error.msg
        if what.startswith("invalid syntax"):
            what = f"`{short(word)}` is not expected here"
        hint = _ELSEWHERE.get(word.lower())
        if word.istitle() and word.upper() in _CAPITALS:
            hint = f"did you mean `{word.lower()}`?"
        return self._wrong(position, piece.end(), what, hint)

    # Conditions

    def _condition(self, node: ast.expr, depth: int) -> Expression:
        operand = self._operand(node, depth)
        try:
            return condition(operand)
        except Mismatch as mismatch:
            raise self._wrong_at(node, str(mismatch), mismatch.hint) from None

    def _operand(self, node: ast.expr, depth: int) -> Operand:
        """What the node means. depth: the nodes around it."""
        if depth > MAX_DEPTH:
            raise _too_deep()
        match node:
            case ast.BoolOp(op, parts):
                conditions = tuple(self._condition(part, depth + 1) for part in parts)
                if isinstance(op, ast.And):
                    return And(conditions)
                self._refuse_ending(node, "or")
                return Or(conditions)
            case ast.UnaryOp(ast.Not(), part):
                negated = Not(self._condition(part, depth + 1))
                self._refuse_ending(node, "not")
                return negated
            case ast.Compare():
                return self._comparison(node, depth)
            case ast.Call(ast.Name()):
                return self._call(node, depth)
            case ast.Name():
                return self._name(node)
            case ast.List(items) | ast.Tuple(items):
                return tuple(self._phrase(item, depth) for item in items)
            case ast.Set(items):
                return distinct(tuple(self._phrase(item, depth) for item in items))
            case ast.Dict(keys=[]):
                return ()
            case ast.Constant(bool(value)):
                return Constant(value)
            case ast.Constant(int(value)):
                return value
            case ast.UnaryOp(ast.USub(), ast.Constant(int(value))):
                return -value
            case ast.Constant(str()):
                return self._string(node)
        raise self._refused(node)

    def _comparison(self, node: ast.Compare, depth: int) -> Expression:
        left = node.left
        left_operand = self._operand(left, depth + 1)
        conditions = []
        for relation, right in zip(node.ops, node.comparators, strict=True):
            right_operand = self._operand(right, depth + 1)
            self._count_term()
            try:
                conditions.append(_compared(left_operand, relation, right_operand))
            except Mismatch as mismatch:
                start = self._place(left)[0]
                end = self._place(right)[1]
                raise self._wrong(start, end, str(mismatch), mismatch.hint) from None
            left = right
            left_operand = right_operand
        return all_of(conditions)

    def _refuse_ending(self, node: ast.expr, joined_by: str) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and self._written(part.func).lower() == "stops_before":
                raise self._wrong_at(
                    part.func,
                    f"stops_before cannot stand under `{joined_by}`",
                    "it says how an output ends, which is neither true nor false;"
                    " join it to the rest by `and`, or use stops_at",
                )

    def _count_term(self) -> None:
        self._num_terms += 1
        if self._num_terms > MAX_TERMS:
            raise TooComplex(f"a where expression has at most {MAX_TERMS} comparisons and calls")

    # Operands

    def _string(self, node: ast.expr) -> str:
        start, end = self._place(node)
        string_end, value = self._strings[start]
        if string_end < end:
            raise self._wrong(string_end, end, "a string behind a string", "expected `,`")
        return value

    def _phrase(self, node: ast.expr, depth: int) -> str:
        operand = self._operand(node, depth + 1)
        if isinstance(operand, str):
            return operand
        hint = 'numbers in texts are strings: "7"' if isinstance(operand, int) else None
        raise self._wrong_at(node, f"a list holds strings, not {described(operand)}", hint)

    def _name(self, node: ast.Name) -> Operand:
        name = self._written(node)
        function = function_of(name)
        if function and self._subject != name:
            usage = f"write {FUNCTIONS[function]}"
            raise self._wrong_at(node, f"`{name}` is a function", usage)
        if self._subject not in (None, name):
            subject = short(str(self._subject))
            raise self._wrong_at(
                node,
                f"the expression is about `{subject}`, so `{short(name)}` stands for nothing",
                f"did you mean `{subject}`?",
            )
        self._subject = name
        return Subject()

    def _call(self, node: ast.Call, depth: int) -> Operand:
        name = self._written(node.func)
        function = function_of(name)
        if function is None:
            hint = _ELSEWHERE.get(name.lower())
            if hint is None:
                close = nearest(name, FUNCTIONS)
                hint = f"did you mean `{close}`?" if close else f"known: {', '.join(FUNCTIONS)}"
            raise self._wrong_at(node.func, f"`{short(name)}` is no function", hint)
        self._count_term()
        arguments = tuple(self._operand(argument, depth + 1) for argument in node.args)
        try:
            return applied(function, arguments)
        except Mismatch as mismatch:
            start, end = self._place(node)
            if mismatch.argument is not None:
                wrong = node.args[min(mismatch.argument, len(node.args) - 1)]
                start, end = self._place_in(wrong, mismatch.offset)
            hint = mismatch.hint or f"as in {FUNCTIONS[function]}"
            raise self._wrong(start, end, str(mismatch), hint) from None

    # Places and errors

    def _place(self, node: ast.expr) -> tuple[int, int]:
        return self._indent + node.col_offset, self._indent + (node.end_col_offset or 0)

    def _place_in(self, node: ast.expr, offset: int | None) -> tuple[int, int]:
        """The place of a character of a string's value; the whole node if escapes hide it."""
        start, end = self._place(node)
        if offset is None or start not in self._strings:
            return start, end
        value_start = self._text.rfind(self._strings[start][1], start, end)
        if value_start < 0:
            return start, end
        place = min(value_start + offset, end - 1)
        return place, place + 1

    def _written(self, node: ast.expr) -> str:
        start, end = self._place(node)
        return self._text[start:end]

    def _refused(self, node: ast.expr) -> Malformed:
        """The error about what conditions do not have."""
        match node:
            case ast.Call(func):
                return self._refused(func)
            case ast.Attribute(before, method):
                hint = _ELSEWHERE.get(method.lower())
                sign = "."
                why = f"there are no methods; {hint}" if hint else "there are no methods"
            case ast.Subscript(before):
                sign = "["
                why = "there are no subscripts"
            case ast.BinOp(before):
                sign = "-"
                why = "there is no arithmetic"
            case _:
                what = f"`{short(self._written(node))}` is not expected here"
                return self._wrong_at(node, what, "expected a condition or a value")
        place = self._text.index(sign, self._place(before)[1])
        return self._wrong(place, place + 1, f"`{sign}` is not expected here", why)

    def _wrong_at(self, node: ast.expr, what: str, hint: str | None = None) -> Malformed:
        start, end = self._place(node)
        return self._wrong(start, end, what, hint)

    def _wrong(self, start: int, end: int, what: str, hint: str | None = None) -> Malformed:
        return complaint(self._text, start, end, what, hint)


def _too_deep() -> TooComplex:
    return TooComplex(f"conditions and calls stand at most {MAX_DEPTH} deep within each other")


def _compared(left: Operand, relation: ast.cmpop, right: Operand) -> Expression:
    match relation:
        case ast.In():
            return contained(left, right)
        case ast.NotIn():
            return Not(contained(left, right))
        case ast.Is() | ast.IsNot():
            raise Mismatch("there is no `is`", _ELSEWHERE["is"])
    return compared(left, _RELATIONS[type(relation)], right)


def _unescaped(body: str) -> str:
    """The value of a string. As in Python, a backslash before any other character is a backslash.

    Raises UnicodeDecodeError.
    """
    known = _ESCAPE.sub(
        lambda escape: escape[0] if escape[1] in _KNOWN_ESCAPES else "\\" + escape[0], body
    )
    return known.encode("latin-1", "backslashreplace").decode("unicode_escape")
