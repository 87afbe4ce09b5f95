"""Decides whether a docstring contains a program or is itself a prompt.

    "Hi {x} [Y]"                 a program: a line begins with a quote, or with a decoder
    if x: "Hi {x} [Y]"           or has quotes elsewhere, if the rest is valid Python
    return await ask(x)          or has none, if it is Python code with an effect
    Say hi to {x}: [Y]           a prompt

Short texts may be valid Python by chance: `Answer: [X]` is an annotation, `Yes, no` a tuple, `Total
= [X]` an assignment. If there is a hole in an ambiguous text, even in a comment or a string, it is
a prompt.
"""

import ast
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from client.query.errors import BadProgram
from client.query.reading import names
from client.query.reading.bodies import HOLE, statements_of
from client.query.reading.clause_keywords import DECODER_WORDS
from client.query.reading.clauses import layout_of
from client.query.reading.layout import Layout
from client.query.reading.text import SourceSpan, Text
from client.query.reading.tokens import beside_code

_PROMPT_OR_DECODER = re.compile(
    rf"^[ \t]*(?:[rRfFuU]{{0,2}}['\"]|(?:{'|'.join(DECODER_WORDS)})(?:$|[\s(\"']))",
    re.MULTILINE | re.IGNORECASE,
)
# `if X: "a [Y]"`, even if the rest is invalid.
_PROMPT_BEHIND_COLON = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:if|elif|else|for|while|with|try|except|finally|match|case)\b"
    r"[^\n]*:[ \t]*[rRfFuU]{0,2}['\"]",
    re.MULTILINE,
)


def is_program(text: Text, held: SourceSpan, known: AbstractSet[str]) -> bool:
    """Whether the text between the quotes is a program. `known`: the names in scope."""
    shown = text.text[held.start : held.end]
    if _PROMPT_OR_DECODER.search(shown):
        return True
    if _PROMPT_BEHIND_COLON.search(shown) and has_holes(text, held):
        return True
    try:
        return _does_something(text, held, known)
    except (BadProgram, RecursionError):
        # A thousand minus signs are valid Python, but no code.
        return False


def has_holes(text: Text, held: SourceSpan) -> bool:
    """Whether it is a program with holes; lines of a prompt may begin with quotes, too."""
    try:
        return _has_holes(layout_of(text, held))
    except BadProgram:
        return False


def _does_something(text: Text, held: SourceSpan, known: AbstractSet[str]) -> bool:
    """Whether it is Python code with an effect. Raises BadProgram, RecursionError."""
    layout = layout_of(text, held)
    preamble, statements = statements_of(text, layout)
    body = [*preamble, *statements]
    if _has_prompts(layout, body):
        return True
    known = known | names.bound_anywhere(body)
    if _gives(body, known):
        return True
    quoted = {name for each in beside_code(text, held) for name in HOLE.findall(each)}
    return quoted <= known and _acts(body, known)


def _has_holes(layout: Layout) -> bool:
    return any("[" in prompt.value.code for prompt in layout.prompts)


def _has_prompts(layout: Layout, body: Sequence[ast.stmt]) -> bool:
    """Whether there are prompts, and no other lines without effect."""
    if not layout.prompts or any(map(_is_idle, body[:-1])):
        return False
    are_all = all(isinstance(each, ast.Expr) for each in body)
    return _has_holes(layout) or are_all


def _is_idle(statement: ast.stmt) -> bool:
    working = (ast.Constant, ast.Call, ast.Await, ast.NamedExpr)
    return isinstance(statement, ast.Expr) and not isinstance(statement.value, working)


def _gives(body: Sequence[ast.stmt], known: AbstractSet[str]) -> bool:
    """Whether it returns or awaits a value, which Python allows in functions only."""
    nodes = list(names.own_scope(body))
    # `Wait: await x` is only an annotation.
    said = {
        node
        for each in nodes
        if isinstance(each, ast.AnnAssign)
        for node in ast.walk(each.annotation)
    }
    return any(_gives_one(node, known) for node in nodes if node not in said)


def _gives_one(node: ast.AST, known: AbstractSet[str]) -> bool:
    match node:
        case ast.Await(awaited):
            return not _is_like_a_hole(awaited, known)
        case ast.Return(value):
            return value is not None
    return isinstance(node, ast.AsyncFor | ast.AsyncWith)


def _acts(body: Sequence[ast.stmt], known: AbstractSet[str]) -> bool:
    """Whether it is code with an effect and without a hole."""
    if all(map(_says_nothing, body)):
        return False
    if any(_is_like_a_hole(node, known) for node in ast.walk(ast.Module(list(body), []))):
        return False
    calls = any(isinstance(node, ast.Call) for node in names.own_scope(body))
    match body[-1]:
        case ast.Expr(ast.Name(name)):
            return calls or name in names.bound_anywhere(body)
    return calls


def _says_nothing(statement: ast.stmt) -> bool:
    """Whether it is an expression or an annotation."""
    is_annotation = isinstance(statement, ast.AnnAssign) and statement.value is None
    return isinstance(statement, ast.Expr | ast.Pass) or is_annotation


def _is_like_a_hole(node: ast.AST, known: AbstractSet[str]) -> bool:
    """Whether it is `[X]` or `[X: int]` of an unknown name, or a recall: `{x}`, `{x:10}`."""
    match node:
        case ast.List([ast.Name(name)]) | ast.Subscript(
            _, ast.Name(name) | ast.Slice(ast.Name(name))
        ):
            return name not in known
        case ast.Set([_]):
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.Expr(value):
            return _is_formatted(value)
    return False


def _is_formatted(value: ast.expr) -> bool:
    """Whether it is `{x:10}`, a dict for Python; with a constant for x it is no recall."""
    match value:
        case ast.Dict([ast.expr() as code], [ast.Constant() | ast.Name() | ast.Set()]):
            return not isinstance(code, ast.Constant)
    return False
