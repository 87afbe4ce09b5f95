"""The laws of the house that import-linter does not hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "processes",
    "router",
    "model_server",
    "constraints",
    "client",
    "fleet",
    "native",
    "proto",
)
SOURCES = [
    "launcher.py",
    *(
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name
    ),
]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_a_test_asserts_whatever_it_finds() -> None:
    """All assertions below an `if` without an `else` may never run."""
    offenders = [
        f"{path.relative_to(ROOT)}: {test.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for test in ast.walk(ast.parse(path.read_text()))
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
        if test.name.startswith("test_")
        if (found := list(_asserts(test, False))) and all(found)
    ]
    assert offenders == []


def _asserts(node: ast.AST, is_conditional: bool) -> Iterator[bool]:
    """For each `assert` and `pytest.raises` below, whether only one branch of an `if` has it."""
    one_branch = isinstance(node, ast.If) and not node.orelse
    for child in ast.iter_child_nodes(node):
        inner = is_conditional or one_branch or isinstance(node, ast.ExceptHandler)
        is_raises = isinstance(child, ast.Call) and ast.unparse(child.func) == "pytest.raises"
        if isinstance(child, ast.Assert) or is_raises:
            yield inner
        yield from _asserts(child, inner)


def test_a_module_says_what_it_is() -> None:
    silent = [
        name
        for name in SOURCES
        if (tree := ast.parse(text(name))).body and not ast.get_docstring(tree)
    ]
    assert silent == [], "a module begins with a docstring"


def test_no_module_keeps_state() -> None:
    rebinding = [
        f"{name}:{node.lineno}"
        for name in SOURCES
        for node in ast.walk(ast.parse(text(name)))
        if isinstance(node, ast.Global)
    ]
    assert rebinding == [], "`global` rebinds module state"


def test_no_import_of_our_own_hides_behind_type_checking() -> None:
    """It would hide an arrow that goes up; packages of others, which are optional, may."""
    hidden = [
        f"{name}:{node.lineno}"
        for name in SOURCES
        for branch in ast.walk(ast.parse(text(name)))
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES
    ]
    assert hidden == []


def test_only_the_edge_speaks_in_status_codes() -> None:
    http = {name for name in SOURCES if re.search(r"(?<![.\w])status_code", text(name))}
    grpc = {name for name in SOURCES if "grpc.StatusCode" in text(name)}
    assert all("http/" in name or name.startswith("client/lmtp/") for name in http), http
    assert grpc <= {
        "model_server/service/service.py",
        "model_server/service/server.py",
        "router/shards/shards.py",
        "router/shards/step_socket.py",
    }


def test_only_the_exporter_imports_opentelemetry() -> None:
    pattern = re.compile(r"^\s*(from|import) opentelemetry", re.MULTILINE)
    assert [name for name in SOURCES if pattern.search(text(name))] == ["processes/otlp.py"]
