"""Names that code binds and uses."""

import ast
from collections.abc import Iterable, Iterator

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def used(node: ast.AST) -> dict[str, ast.Name]:
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
            inner |= {name for each in node.generators for name in _bindings(each.target)}
    for child in ast.iter_child_nodes(node):
        yield from _read(child, inner)


def bound(statements: Iterable[ast.stmt]) -> set[str]:
    """Names that statements bind in their own scope."""
    return {name for statement in statements for name in _bindings(statement)}


def _bindings(node: ast.AST) -> Iterator[str]:
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
    if not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _bindings(child)


def bound_anywhere(statements: Iterable[ast.stmt]) -> set[str]:
    """Names that statements bind in their own scope, or in nested functions and classes."""
    found: set[str] = set()
    for node in (each for statement in statements for each in ast.walk(statement)):
        found.update(_bindings(node))
        if isinstance(node, ast.Global):
            found.update(node.names)
    return found


def own_scope(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of statements, without the bodies of nested functions and classes."""
    for statement in statements:
        yield from _nodes(statement)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _nodes(child)
