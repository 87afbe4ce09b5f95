"""Whether a docstring holds a program, or is a prompt itself.

    "Hi {x} [Y]"                 a program: a line begins with a quote, or with a decoder
    if x: "Hi {x} [Y]"           and with quotes elsewhere, where Python reads the rest
    return await ask(x)          or with none, where it does something that no text does
    Say hi to {x}: [Y]           a prompt

Short texts may be Python by chance: `Answer: [X]` annotates, `Yes, no` is a pair, and `Total = [X]`
gives Total a list. Where a hole stands in what could be either, it is a prompt.
"""

import ast
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from client.query.errors import BadProgram
from client.query.reading import names
from client.query.reading.bodies import statements_of
from client.query.reading.clauses import layout_of
from client.query.reading.layout import Layout
from client.query.reading.text import Span, Text
from client.query.reading.words import DECODERS

_PROMPT_OR_DECODER = re.compile(
    rf"^[ \t]*(?:[rRfFuU]{{0,2}}['\"]|(?:{'|'.join(DECODERS)})(?:$|[\s(\"']))",
    re.MULTILINE | re.IGNORECASE,
)
# `if X: "a [Y]"`, though what follows may be wrong.
_PROMPT_BEHIND_COLON = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:if|elif|else|for|while|with|try|except|finally|match|case)\b"
    r"[^\n]*:[ \t]*[rRfFuU]{0,2}['\"]",
    re.MULTILINE,
)
_AWAITING = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def is_program(text: Text, held: Span, known: AbstractSet[str]) -> bool:
    """What stands between the quotes. `known` are the names that it would see."""
    shown = text.text[held.start : held.end]
    if _PROMPT_OR_DECODER.search(shown):
        return True
    if _PROMPT_BEHIND_COLON.search(shown) and asks(text, held):
        return True
    try:
        layout = layout_of(text, held)
        preamble, statements = statements_of(text, layout)
    except BadProgram:
        return False
    body = [*preamble, *statements]
    return _has_prompts(layout, body) or _gives(body) or _acts(body, known)


def asks(text: Text, held: Span) -> bool:
    """Whether it is a program with holes; a prompt may have lines that begin with quotes, too."""
    try:
        return _has_holes(layout_of(text, held))
    except BadProgram:
        return False


def _has_holes(layout: Layout) -> bool:
    return any("[" in prompt.value.code for prompt in layout.prompts)


def _has_prompts(layout: Layout, body: Sequence[ast.stmt]) -> bool:
    """Prompts, and beside them no lines that would do nothing."""
    if not layout.prompts or any(map(_is_idle, body[:-1])):
        return False
    are_all = all(isinstance(each, ast.Expr) for each in body)
    return _has_holes(layout) or are_all


def _is_idle(statement: ast.stmt) -> bool:
    working = (ast.Constant, ast.Call, ast.Await, ast.NamedExpr)
    return isinstance(statement, ast.Expr) and not isinstance(statement.value, working)


def _gives(body: Sequence[ast.stmt]) -> bool:
    """Whether it returns a value or awaits one, which Python does in functions alone."""
    return any(
        isinstance(node, _AWAITING) or (isinstance(node, ast.Return) and node.value is not None)
        for node in names.own_scope(body)
    )


def _acts(body: Sequence[ast.stmt], known: AbstractSet[str]) -> bool:
    """Whether it is more than an expression, calls something or has a value, and has no hole."""
    if all(map(_says_nothing, body)):
        return False
    bound = names.bound_anywhere(body)
    if any(_is_like_a_hole(node, bound | known) for node in ast.walk(ast.Module(list(body), []))):
        return False
    calls = any(isinstance(node, ast.Call) for node in names.own_scope(body))
    match body[-1]:
        case ast.Expr(ast.Name(name)):
            return calls or name in bound
    return calls


def _says_nothing(statement: ast.stmt) -> bool:
    """An expression, or a word with a colon and one behind it."""
    is_annotation = isinstance(statement, ast.AnnAssign) and statement.value is None
    return isinstance(statement, ast.Expr | ast.Pass) or is_annotation


def _is_like_a_hole(node: ast.AST, known: AbstractSet[str]) -> bool:
    """`[X]` of a name that nobody knows, or what recalls a value: `{x}`."""
    match node:
        case ast.List([ast.Name(name)]) | ast.Subscript(_, ast.Name(name)):
            return name not in known
        case ast.Set([_]):
            return True
    return False
