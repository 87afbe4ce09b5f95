"""Prompts and conditions, and the Python that they become.

"Q: {question!r:>9} {:assistant} [@trim ANSWER: int]"
 Words  Recall      RoleTag      HoleTag

"Q: {x} [@f Y: int]" where c    ->    context.say(f"Q: {x} ")
                                      Y = await context.hole(Hole("Y", int, f, lambda: c))

A condition becomes calls of `conditions/terms.py`:

    len(words(X)) < n and X != Y and check(X)
    ->  lambda: compare(called("len", called("words", ref("X"))), "<", n)
        lambda: compare(ref("X"), "!=", ref("Y"))
        lambda: opaque(("X",), lambda X: check(X), "check(X)")

Each part of the outermost `and` is a separate condition, evaluated at the holes that it mentions,
since variables in the others may be unbound yet. Expressions without holes stay Python.
"""

import ast
import keyword
import re
import unicodedata
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from client.query.conditions.terms import OPERATORS
from client.query.errors import BadProgram
from client.query.reading.clauses import Distribution, PromptText
from client.query.reading.nodes import (
    CALLS,
    CONTEXT,
    Nodes,
    expression,
    lambda_of,
    load,
    names_used,
    plain_call,
    tuple_of,
)
from client.query.reading.text import Fragment, SourceSpan, Text

SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


_RELATIONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_METHODS = {"startswith": "starts_with", "endswith": "ends_with"}
_OPERATORS_OF_PYTHON = frozenset({"len", "int", "float", "type"})
# Values that are true in Python if they are not empty.
_NO_CONDITIONS = (ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.Lambda, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Conjunct:
    """A part of a condition: the holes that it mentions, and a function that makes its term."""

    holes: frozenset[str]
    function: ast.expr

    def concerns(self, hole: str) -> bool:
        """Whether it is evaluated at a hole; one without holes is evaluated at each."""
        return not self.holes or hole in self.holes


class WhereClauses:
    """Rewrites the conditions of one program.

    own: names of the program's own functions, which hide operators
    """

    def __init__(self, nodes: Nodes, holes: AbstractSet[str], own: AbstractSet[str]) -> None:
        self._nodes = nodes
        self._all_holes = holes
        # Those of the condition that is read.
        self._holes = holes
        self._own = own

    def conjuncts(
        self, condition: ast.expr, variables: AbstractSet[str] = frozenset()
    ) -> list[Conjunct]:
        """The parts of the outermost `and`. Raises BadProgram.

        `variables`: holes that the program assigns, too: here their names are Python's.
        """
        self._holes = self._all_holes - variables
        is_and = isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And)
        parts = condition.values if is_and and isinstance(condition, ast.BoolOp) else [condition]
        return [self._conjunct(part) for part in parts]

    def _conjunct(self, part: ast.expr) -> Conjunct:
        span = self._nodes.span(part)
        made = self._nodes.term("term", span, self._condition(part))
        function = self._nodes.at(lambda_of((), made), span)
        return Conjunct(frozenset(self._named(part)), function)

    def _check_is_condition(self, node: ast.expr) -> None:
        """Raises for a condition that is always true, which is probably a mistake."""
        if isinstance(node, ast.Tuple):
            raise self._nodes.bad("conditions are joined by `and`, not by a comma", node)
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text or isinstance(node, _NO_CONDITIONS):
            raise self._nodes.bad("this says nothing that could be true or false; compare it", node)

    # Words

    def _named(self, node: ast.AST) -> tuple[str, ...]:
        """The holes that an expression mentions, in order."""
        return tuple(name for name in names_used(node) if name in self._holes)

    def _operator(self, call: ast.Call) -> str | None:
        """The operator of a call; None: it is none."""
        if not isinstance(call.func, ast.Name) or call.func.id in self._own:
            return None
        name = call.func.id
        is_word = name.islower() or name.isupper()
        return name.lower() if is_word and name.lower() in OPERATORS else None

    def _is_text(self, node: ast.expr) -> bool:
        """Whether this is a hole, or a hole in lower case."""
        match node:
            case ast.Name(name):
                return name in self._holes
            case ast.Call(ast.Attribute(ast.Name(name), "lower"), [], []):
                return name in self._holes
        return False

    # Terms

    def _condition(self, node: ast.expr) -> ast.expr:
        self._check_is_condition(node)
        return self._rewritten(node)

    def _asks(self, node: ast.expr) -> bool:
        """Whether it has a hole, or one of our operators, which then is about a variable."""
        calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
        ours = {self._operator(call) for call in calls} - _OPERATORS_OF_PYTHON - {None}
        return bool(ours or self._named(node))

    def _rewritten(self, node: ast.expr) -> ast.expr:
        if not self._asks(node):
            return node
        span = self._nodes.span(node)
        match node:
            case ast.BoolOp():
                method = "all_" if isinstance(node.op, ast.And) else "any_"
                return self._nodes.term(method, span, *map(self._later, node.values))
            case ast.UnaryOp(op=ast.Not()):
                return self._nodes.term("not_", span, self._condition(node.operand))
            case ast.Compare():
                return self._compared(node)
            case ast.Name() if node.id in self._holes:
                return self._nodes.term("ref", span, ast.Constant(node.id))
            case ast.Call():
                return self._called(node)
            case ast.BinOp() if type(node.op) in SYMBOLS:
                return self._calculated(node)
        return self._opaque(node)

    def _calculated(self, node: ast.BinOp) -> ast.expr:
        span = self._nodes.span(node)
        symbol = ast.Constant(SYMBOLS[type(node.op)])
        shown = ast.Constant(self._shown(node))
        left = self._rewritten(node.left)
        right = self._rewritten(node.right)
        return self._nodes.term("calculated", span, left, symbol, right, shown)

    def _later(self, node: ast.expr) -> ast.expr:
        return self._nodes.at(lambda_of((), self._condition(node)), self._nodes.span(node))

    def _compared(self, node: ast.Compare) -> ast.expr:
        """Rewrite a comparison; a chain becomes one for each pair."""
        sides = [node.left, *node.comparators]
        pairs = []
        for left, relation, right in zip(sides, node.ops, sides[1:], strict=False):
            span = SourceSpan(self._nodes.span(left).start, self._nodes.span(right).end)
            word = ast.Constant(_RELATIONS[type(relation)])
            first = self._rewritten(left)
            second = self._rewritten(right)
            pairs.append(self._nodes.term("compare", span, first, word, second))
        if len(pairs) == 1:
            return pairs[0]
        span = self._nodes.span(node)
        later = [self._nodes.at(lambda_of((), pair), span) for pair in pairs]
        return self._nodes.term("all_", span, *later)

    def _called(self, node: ast.Call) -> ast.expr:
        span = self._nodes.span(node)
        operator = self._operator(node)
        if operator is not None:
            if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
                raise self._nodes.bad(f"`{operator}` takes plain arguments alone", node)
            arguments = map(self._rewritten, node.args)
            return self._nodes.term("called", span, ast.Constant(operator), *arguments)
        function = node.func
        if (
            isinstance(function, ast.Attribute)
            and self._is_text(function.value)
            and function.attr in _METHODS
            and len(node.args) == 1
            and not node.keywords
        ):
            word = ast.Constant(_METHODS[function.attr])
            parts = map(self._rewritten, (function.value, node.args[0]))
            return self._nodes.term("called", span, word, *parts)
        return self._opaque(node)

    def _opaque(self, node: ast.expr) -> ast.expr:
        holes = self._named(node)
        shown = ast.Constant(self._shown(node))
        named = tuple_of([ast.Constant(name) for name in holes])
        span = self._nodes.span(node)
        return self._nodes.term("opaque", span, named, lambda_of(holes, node), shown)

    def _shown(self, node: ast.expr) -> str:
        """The source text on one line."""
        span = self._nodes.span(node)
        return " ".join(self._nodes.text.text[span.start : span.end].split())


_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
_QUOTES = re.compile(r"'''|\"\"\"|'|\"")


def _end_of_code(chars: str, index: int, signs: str, end: int | None = None) -> int | None:
    """The first of some signs outside of brackets and strings of Python code."""
    stop = len(chars) if end is None else end
    closing: list[str] = []
    while index < stop:
        char = chars[index]
        if quotes := _QUOTES.match(chars, index, stop):
            string = re.compile(rf"(?:\\.|(?!{quotes[0]}).)*{quotes[0]}", re.DOTALL)
            found = string.match(chars, quotes.end(), stop)
            if found is None:
                return None
            index = found.end()
            continue
        if not closing and char in signs and chars[index : index + 2] != "!=":
            return index
        if char in _CLOSED_BY:
            closing.append(_CLOSED_BY[char])
        elif closing and char == closing[-1]:
            closing.pop()
        index += 1
    return None


# Signs of the language, doubled, are text; so is a single `]`.
_DOUBLED = re.compile(r"\[\[|\]\]|\{\{|\}\}")
_FIXED = re.compile(rf"(?:{_DOUBLED.pattern}|[^\[{{}}])+")
_ROLES = ("system", "user", "assistant", "tool")
_DOTTED = re.compile(r"\w+(?:\s*\.\s*\w+)*\s*")


@dataclass(frozen=True, slots=True)
class FixedText:
    """Fixed text."""

    text: str
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class Recall:
    """`{code}`, as in an f-string.

    shown: an f-string of a 0 in place of the code, with its conversion and format
    shows_code: the text for `=`
    """

    code: Fragment
    shown: Fragment
    span: SourceSpan
    shows_code: str = ""


@dataclass(frozen=True, slots=True)
class RoleTag:
    """`{:name}`."""

    name: str
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class HoleTag:
    """`[@decorator NAME: kind]`."""

    name: str
    span: SourceSpan
    decorators: tuple[Fragment, ...] = ()
    kind: Fragment | None = None


TemplatePart: TypeAlias = FixedText | Recall | RoleTag | HoleTag


def template_parts(text: Text, value: Fragment) -> tuple[TemplatePart, ...]:
    """The parts of a prompt's value. Raises BadProgram."""
    return _Reader(text, value).parts()


class _Reader:
    """Reads the characters of one prompt."""

    def __init__(self, text: Text, value: Fragment) -> None:
        self._text = text
        self._chars = value.code
        self._offsets = value.offsets
        self._parts: list[TemplatePart] = []

    def parts(self) -> tuple[TemplatePart, ...]:
        index = 0
        while index < len(self._chars):
            if fixed := _FIXED.match(self._chars, index):
                text = _DOUBLED.sub(lambda pair: pair[0][0], fixed[0])
                self._parts.append(FixedText(text, self._span(index, fixed.end())))
                index = fixed.end()
            elif self._chars[index] == "[":
                index = self._hole(index)
            elif self._chars[index] == "{":
                index = self._brace(index)
            else:
                what = "a single '}'; write '}}' for the sign itself"
                raise self._bad(what, index)
        return tuple(self._parts)

    # Braces

    def _brace(self, start: int) -> int:
        end = self._find(start + 1, "}")
        if end is None:
            raise self._bad(
                "'{' opens a value that is recalled and never closes; write '{{' for the sign",
                start,
            )
        content = self._chars[start + 1 : end].strip()
        if content.startswith(":"):
            self._parts.append(self._role(content[1:].strip(), start, end + 1))
            return end + 1
        recall, stop = self._recall(start)
        self._parts.append(recall)
        return stop

    def _role(self, name: str, start: int, stop: int) -> RoleTag:
        if name not in _ROLES:
            known = ", ".join(f"{{:{role}}}" for role in _ROLES)
            raise self._bad(f"'{{:{name}}}' is no role; known are {known}", start, stop)
        return RoleTag(name, self._span(start, stop))

    def _recall(self, start: int) -> tuple[Recall, int]:
        """`{code=!r:spec}` and the index behind it."""
        end = self._find(start + 1, "}!:")
        if end is None:
            raise self._bad("'{' is never closed", start)
        code_end = end
        shows_code = ""
        form_start = end
        if re.search(r"[^=!<>:]=\s*$", self._chars[start + 1 : end]):
            shows_code = self._chars[start + 1 : end]
            code_end = start + 1 + shows_code.rstrip().rindex("=")
        if self._chars[end] != "}":
            end = self._find(end + 1, "}")
            if end is None:
                raise self._bad("'{' is never closed", start)
        if not self._chars[start + 1 : code_end].strip():
            raise self._bad(
                "an expression is missing between '{' and '}'; write '{{}}' for the signs",
                start,
                end + 1,
            )
        form = self._fragment(form_start, end)
        suffix = form.code or ("!r" if shows_code else "")
        head = "rf'''{0"
        before = [self._offsets[start]] * len(head)
        behind = [self._offsets[end]] * (len(suffix) - len(form.code) + len("}'''"))
        shown = Fragment(f"{head}{suffix}}}'''", [*before, *form.offsets, *behind])
        code = self._fragment(start + 1, code_end)
        return Recall(code, shown, self._span(start, end + 1), shows_code), end + 1

    # Holes

    def _hole(self, start: int) -> int:
        end = self._find(start + 1, "]")
        if end is None:
            raise self._bad(
                "'[' opens a hole that is never closed; write '[[' for the sign",
                start,
            )
        decorators, index = self._decorators(start + 1, end)
        colon = self._find(index, ":", end)
        name = self._chars[index : end if colon is None else colon].strip()
        self._check_name(name, start, end + 1)
        kind = None
        if colon is not None:
            if not self._chars[colon + 1 : end].strip():
                raise self._bad(f"behind '{name}:' comes a type, or a query", colon)
            kind = self._fragment(colon + 1, end)
        name = unicodedata.normalize("NFKC", name)
        self._parts.append(HoleTag(name, self._span(start, end + 1), decorators, kind))
        return end + 1

    def _decorators(self, index: int, end: int) -> tuple[tuple[Fragment, ...], int]:
        made: list[Fragment] = []
        while True:
            while index < end and self._chars[index].isspace():
                index += 1
            if index == end or self._chars[index] != "@":
                return tuple(made), index
            match = _DOTTED.match(self._chars, index + 1, end)
            if match is None:
                raise self._bad("behind '@' comes the name of a function", index)
            stop = match.end()
            if self._chars[stop : stop + 1] == "(":
                closing = self._find(stop + 1, ")", end)
                if closing is None:
                    raise self._bad("'(' is never closed", stop)
                stop = closing + 1
            made.append(self._fragment(index + 1, stop))
            index = stop

    def _check_name(self, name: str, start: int, stop: int) -> None:
        if not name:
            raise self._bad("a hole without a name; write '[[]]' for the signs", start, stop)
        if not name.isidentifier():
            raise self._bad(
                f"'{name}' is no name for a hole; write '[[' and ']]' for the signs themselves",
                start,
                stop,
            )
        if keyword.iskeyword(name):
            raise self._bad(f"'{name}' is a word of Python's and cannot name a hole", start, stop)

    # Parts of the text

    def _find(self, index: int, signs: str, end: int | None = None) -> int | None:
        return _end_of_code(self._chars, index, signs, end)

    def _fragment(self, start: int, end: int) -> Fragment:
        return Fragment(self._chars[start:end], self._offsets[start : end + 1])

    def _span(self, start: int, end: int) -> SourceSpan:
        first = self._offsets[start]
        return SourceSpan(first, max(self._offsets[end - 1] + 1, first) if end > start else first)

    def _bad(self, message: str, start: int, end: int | None = None) -> BadProgram:
        return self._text.bad(message, self._span(start, start + 1 if end is None else end))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its parts."""

    string: PromptText
    parts: tuple[TemplatePart, ...]

    @property
    def holes(self) -> tuple[HoleTag, ...]:
        return tuple(part for part in self.parts if isinstance(part, HoleTag))


class PromptRewriter:
    """Generates the statements of a program's prompts.

    prompts:       all prompts
    program_where: the program's own conditions, with their names in the body
    distribution:  the program's own
    rebound:       holes whose variables the program's own code assigns, too
    """

    def __init__(
        self,
        nodes: Nodes,
        clauses: WhereClauses,
        prompts: Sequence[Prompt],
        program_where: Sequence[tuple[str, Conjunct]],
        distribution: Distribution | None,
        rebound: AbstractSet[str],
    ) -> None:
        self._nodes = nodes
        self._text: Text = nodes.text
        self._clauses = clauses
        self._program_where = program_where
        self._distribution = distribution
        self._rebound = rebound
        self._conjuncts = {prompt.string.span: self._behind(prompt) for prompt in prompts}

    def statements(self, prompt: Prompt) -> list[ast.stmt]:
        """The statements of a prompt, part by part. Raises BadProgram."""
        made: list[ast.stmt] = []
        said: list[FixedText | Recall] = []
        for part in prompt.parts:
            if isinstance(part, FixedText | Recall):
                said.append(part)
                continue
            made.extend(self._say(said))
            said.clear()
            if isinstance(part, RoleTag):
                made.append(self._role(part))
            else:
                made.append(self._hole(part, prompt))
        made.extend(self._say(said))
        return made or [self._nodes.at(ast.Pass(), prompt.string.span)]

    def _behind(self, prompt: Prompt) -> list[Conjunct]:
        """The conditions behind a prompt's `where`."""
        self._check_clauses(prompt)
        if prompt.string.where is None:
            return []
        what = "in the prompt's condition"
        parsed = expression(self._text, self._text.slice(prompt.string.where), what)
        own = {hole.name for hole in prompt.holes}
        parts = self._clauses.conjuncts(parsed, self._rebound - own)
        for part in parts:
            if part.holes and part.holes.isdisjoint(own):
                others = ", ".join(sorted(part.holes))
                what = f"a condition of {others} alone, behind a prompt without that hole"
                hint = "say it behind its own prompt, or in the program's `where`"
                raise self._text.bad(f"{what}: {hint}", self._nodes.span(part.function))
        return parts

    def _check_clauses(self, prompt: Prompt) -> None:
        if prompt.string.where is not None and not prompt.holes:
            raise self._text.bad("a `where` behind a prompt without holes", prompt.string.where)
        if prompt.string.distribution is not None:
            holes = [hole.name for hole in prompt.holes]
            prompt.string.distribution.check(self._text, holes, "its prompt")

    # Fixed text

    def _say(self, said: Sequence[FixedText | Recall]) -> list[ast.stmt]:
        if not said:
            return []
        span = SourceSpan(said[0].span.start, said[-1].span.end)
        call = plain_call(CONTEXT, "say", [self._joined(said)])
        return [self._nodes.at(ast.Expr(call), span)]

    def _joined(self, parts: Sequence[FixedText | Recall]) -> ast.expr:
        if all(isinstance(part, FixedText) for part in parts):
            text = "".join(part.text for part in parts if isinstance(part, FixedText))
            return ast.Constant(text)
        values: list[ast.expr] = []
        for part in parts:
            if isinstance(part, FixedText):
                values.append(self._nodes.at(ast.Constant(part.text), part.span))
            else:
                values.extend(self._recalled(part))
        return ast.JoinedStr(values)

    def _recalled(self, recall: Recall) -> list[ast.expr]:
        code = plain_call(CALLS, "recalled", [self._read(recall.code, "in braces")])
        shown = expression(self._text, recall.shown, "in braces")
        assert isinstance(shown, ast.JoinedStr)
        (value,) = shown.values
        assert isinstance(value, ast.FormattedValue)
        value.value = code
        self._nodes.at(value, recall.span)
        if not recall.shows_code:
            return [value]
        return [self._nodes.at(ast.Constant(recall.shows_code), recall.span), value]

    def _read(self, fragment: Fragment, what: str) -> ast.expr:
        """Parse code in a prompt: with the string's escapes resolved or, if invalid, as written.

        So `{"\\n".join(x)}` works in raw and other strings.
        """
        try:
            return expression(self._text, fragment, what)
        except BadProgram:
            start = fragment.offsets[0]
            end = fragment.offsets[-1]
            as_it_stands = self._text.slice(SourceSpan(start, end))
            if as_it_stands.code == fragment.code:
                raise
            with suppress(BadProgram):  # the first error is the relevant one
                return expression(self._text, as_it_stands, what)
            raise

    def _role(self, tag: RoleTag) -> ast.stmt:
        place = plain_call(CALLS, "place", [self._nodes.number(tag.span)])
        call = plain_call(CONTEXT, "role", [ast.Constant(tag.name), place])
        return self._nodes.at(ast.Expr(call), tag.span)

    # Holes

    def _hole(self, tag: HoleTag, prompt: Prompt) -> ast.stmt:
        behind = self._conjuncts[prompt.string.span]
        conditions = [
            *(part.function for part in behind if part.concerns(tag.name)),
            *(load(name) for name, part in self._program_where if part.concerns(tag.name)),
        ]
        hole = plain_call(
            CALLS,
            "hole",
            [
                ast.Constant(tag.name),
                self._nodes.number(tag.span),
                self._kind(tag),
                tuple_of([self._decorator(code) for code in tag.decorators]),
                tuple_of(conditions),
                self._support(tag, prompt),
            ],
        )
        asked = ast.Await(plain_call(CONTEXT, "hole", [hole]))
        return self._nodes.at(ast.Assign([ast.Name(tag.name, ast.Store())], asked), tag.span)

    def _kind(self, tag: HoleTag) -> ast.expr:
        if tag.kind is None:
            return ast.Constant(None)
        kind = self._read(tag.kind, f"the type of {tag.name}")
        span = self._nodes.span(kind)
        if not isinstance(kind, ast.Call):
            return self._nodes.call("kind", span, kind)
        given = [self._nodes.number(span), kind.func, *kind.args]
        return self._nodes.at(plain_call(CALLS, "called_kind", given, kind.keywords), span)

    def _decorator(self, code: Fragment) -> ast.expr:
        function = self._read(code, "behind '@'")
        return self._nodes.call("decorator", self._nodes.span(function), function)

    def _support(self, tag: HoleTag, prompt: Prompt) -> ast.expr:
        """The values of its distribution, its prompt's own or the program's."""
        for distribution in (prompt.string.distribution, self._distribution):
            if distribution is not None and distribution.name == tag.name:
                span = distribution.values
                what = f"the values of {tag.name}"
                values = expression(self._text, self._text.slice(span), what)
                return self._nodes.call("support", span, ast.Constant(tag.name), values)
        return ast.Constant(None)
