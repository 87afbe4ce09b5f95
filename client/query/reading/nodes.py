"""Python's trees of a program: parsed, searched for names, and built, each node with its place."""

import ast
import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from client.query.errors import BadProgram, Place, Source
from client.query.reading.text import Fragment, SourceSpan, Text

# The names of the helpers in generated code, which programs leave alone.
CALLS = "__tandem"
BUILD = "__tandem_build"
CONTEXT = "__tandem_context__"

NodeT = TypeVar("NodeT", bound=ast.AST)


class Nodes:
    """Makes nodes, and numbers the places that the code names."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.places: list[Place] = []

    def number(self, span: SourceSpan) -> ast.expr:
        """The number of a place, for `Calls`."""
        self.places.append(self.text.place(span))
        return ast.Constant(len(self.places) - 1)

    def at(self, node: NodeT, span: SourceSpan) -> NodeT:
        """The tree, with nodes without a place set to the span."""
        line, column = self.text.byte_position(span.start)
        end_line, end_column = self.text.byte_position(span.end)
        for each in ast.walk(node):
            if "lineno" in each._attributes and not hasattr(each, "lineno"):
                each.lineno = line  # type: ignore[attr-defined]
                each.col_offset = column  # type: ignore[attr-defined]
                each.end_lineno = end_line  # type: ignore[attr-defined]
                each.end_col_offset = end_column  # type: ignore[attr-defined]
        return node

    def span(self, node: ast.expr | ast.stmt | ast.excepthandler | ast.alias) -> SourceSpan:
        """The place of a node."""
        start = self.text.offset_of_bytes(node.lineno, node.col_offset)
        end = self.text.offset_of_bytes(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return SourceSpan(start, end)

    def bad(self, message: str, node: ast.expr | ast.stmt | ast.alias) -> BadProgram:
        """An error at the place of a node."""
        return self.text.bad(message, self.span(node))

    def call(self, method: str, span: SourceSpan, *arguments: ast.expr) -> ast.expr:
        """A call of `Calls`; its first argument is the number of the place."""
        return self.at(plain_call(CALLS, method, [self.number(span), *arguments]), span)

    def term(self, function: str, span: SourceSpan, *arguments: ast.expr) -> ast.expr:
        """A call of a function of `conditions/terms.py`, with its place."""
        place = plain_call(CALLS, "place", [self.number(span)])
        return self.at(plain_call(BUILD, function, [place, *arguments]), span)


def plain_call(
    owner: str,
    method: str,
    arguments: Sequence[ast.expr],
    keywords: Sequence[ast.keyword] = (),
) -> ast.Call:
    """`owner.method(*arguments)`."""
    function = ast.Attribute(load(owner), method, ast.Load())
    return ast.Call(function, list(arguments), list(keywords))


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def lambda_of(names: Sequence[str], body: ast.expr) -> ast.Lambda:
    """`lambda *names: body`."""
    return ast.Lambda(arguments_of(", ".join(names)), body)


def arguments_of(shown: str) -> ast.arguments:
    """The parameters between a function's brackets."""
    function = ast.parse(f"lambda {shown}: 0", mode="eval").body
    assert isinstance(function, ast.Lambda)
    return function.args


def tuple_of(elements: Sequence[ast.expr]) -> ast.Tuple:
    return ast.Tuple(list(elements), ast.Load())


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def names_used(node: ast.AST) -> dict[str, ast.Name]:
    """The free names of a tree, in order of first use.

    Without names bound by its own lambdas and comprehensions.
    """
    found: dict[str, ast.Name] = {}
    for name in sorted(_read(node, frozenset()), key=_position):
        found.setdefault(name.id, name)
    return found


def _position(name: ast.Name) -> tuple[int, int]:
    return name.lineno, name.col_offset


def _read(node: ast.AST, inner: frozenset[str]) -> Iterator[ast.Name]:
    match node:
        case ast.Name(ctx=ast.Load()):
            if node.id not in inner:
                yield node
        case ast.Lambda():
            inner |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            # The first iterable is evaluated outside: x in [x for x in x].
            first, *_ = node.generators
            yield from _read(first.iter, inner)
            inner |= names_bound(each.target for each in node.generators)
    for child in ast.iter_child_nodes(node):
        yield from _read(child, inner)


def names_bound(statements: Iterable[ast.AST]) -> set[str]:
    """Names that statements bind in their own scope."""
    return {name for node in own_scope(statements) for name in _bound_by(node)}


def _bound_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Name(ctx=ast.Store()):
            yield node.id
        case ast.alias():
            yield (node.asname or node.name).split(".")[0]
        case ast.ExceptHandler(name=str() as name):
            yield name
        case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
            yield name
        case ast.MatchMapping(rest=str() as name):
            yield name


def names_bound_anywhere(statements: Iterable[ast.stmt]) -> set[str]:
    """Names that statements bind in their own scope, or in nested functions and classes."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    return declared.union(*map(_bound_by, nodes))


def own_scope(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of statements, without the bodies of nested functions and classes."""
    for node in statements:
        yield node
        if not isinstance(node, SCOPES):
            yield from own_scope(ast.iter_child_nodes(node))


# Errors of Python's parser: syntax, null bytes and lone surrogates, too deep nesting.
_REFUSALS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)

# Nodes with a place.
PLACED = (
    ast.expr,
    ast.stmt,
    ast.arg,
    ast.keyword,
    ast.alias,
    ast.excepthandler,
    ast.pattern,
    *([ast.type_param] if hasattr(ast, "type_param") else []),
)


def expression(text: Text, fragment: Fragment, what: str) -> ast.expr:
    """An expression, possibly on several lines. `what`: its name in messages."""
    if not fragment.code.strip():
        raise text.bad(f"{what}: an expression is missing", fragment.offsets[0])
    tree = _parsed(text, fragment, ("(", "\n)"), "eval", what)
    assert isinstance(tree, ast.Expression)
    return tree.body


def statements(text: Text, fragment: Fragment) -> list[ast.stmt]:
    """Statements, indented or not; the fragment begins at a line start."""
    is_indented = next((line for line in fragment.code.split("\n") if _is_code(line)), "")[:1] in (
        " ",
        "\t",
    )
    prefix = "if 1:\n" if is_indented else ""
    tree = _parsed(text, fragment, (prefix, ""), "exec", "")
    assert isinstance(tree, ast.Module)
    if not is_indented:
        return tree.body
    block = tree.body[0]
    assert isinstance(block, ast.If)
    strays = [*tree.body[1:], *block.orelse]
    if strays:
        offset = text.offset_of_bytes(strays[0].lineno, 0)
        raise text.bad("this line stands further left than the program begins", offset)
    return block.body


def _is_code(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("#")


def _parsed(
    text: Text, fragment: Fragment, around: tuple[str, str], mode: str, what: str
) -> ast.AST:
    code = around[0] + fragment.code + around[1]
    lines = _Lines(text, code, len(around[0]), fragment.offsets)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code, mode=mode)
    except _REFUSALS as error:
        raise _refused(text, lines, fragment, error, what) from None
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            lines.place(node)
    return tree


class _Lines:
    """Positions in parsed code to offsets of the text."""

    def __init__(self, text: Text, code: str, num_before: int, offsets: Sequence[int]) -> None:
        self.code = Text(Source(code, "<code>"))
        self._text = text
        self._num_before = num_before
        self._offsets = offsets

    def offset(self, place: int) -> int:
        """`place`: an offset of the parsed code."""
        return self._offsets[self._index(place)]

    def end_offset(self, place: int) -> int:
        """The offset behind the last character before the place."""
        index = self._index(place)
        return self._offsets[index - 1] + 1 if index else self._offsets[0]

    def _index(self, place: int) -> int:
        return min(max(place - self._num_before, 0), len(self._offsets) - 1)

    def place(self, node: ast.AST) -> None:
        """Set a node's place to that in the text."""
        assert isinstance(node, PLACED)
        start = self.offset(self.code.offset_of_bytes(node.lineno, node.col_offset))
        end_line = node.end_lineno or node.lineno
        end = self.end_offset(self.code.offset_of_bytes(end_line, node.end_col_offset or 0))
        end = max(end, start)
        node.lineno, node.col_offset = self._text.byte_position(start)
        node.end_lineno, node.end_col_offset = self._text.byte_position(end)


def _refused(
    text: Text, lines: _Lines, fragment: Fragment, error: Exception, what: str
) -> BadProgram:
    head = f"{what}: " if what else ""
    if not isinstance(error, SyntaxError):
        said = str(error) or "the code is nested too deeply"
        return text.bad(head + said, fragment.offsets[0])
    line = error.lineno or 1
    column = (error.offset or 1) - 1
    start = lines.offset(lines.code.offset(line, column))
    end_column = (error.end_offset or 0) - 1
    end_place = lines.code.offset(error.end_lineno or line, end_column)
    end = lines.end_offset(end_place) if end_column > 0 else start + 1
    return text.bad(head + error.msg, SourceSpan(start, max(end, start + 1)))


def parameters_of(
    signature: inspect.Signature, first: str | None, given: Iterable[str]
) -> ast.arguments:
    """A signature's parameters and the `given` names, with placeholders for defaults, which are set
    later."""
    kind = inspect.Parameter
    own = [
        each.replace(
            annotation=each.empty, default=each.empty if each.default is each.empty else None
        )
        for each in signature.parameters.values()
    ]
    context = [] if first is None else [kind(first, kind.POSITIONAL_ONLY)]
    kept = [kind(name, kind.KEYWORD_ONLY, default=None) for name in sorted(given)]
    shown = inspect.Signature(sorted([*context, *own, *kept], key=lambda each: each.kind))
    return arguments_of(str(shown)[1:-1])
