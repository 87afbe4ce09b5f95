"""The laws of the house that import-linter does not hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture import structures
from tests.architecture.figures import ROOT, functions, modules, twin_classes

PACKAGES = (
    "launcher",
    "processes",
    "router",
    "model_server",
    "constraints",
    "client",
    "fleet",
    "native",
)
MAX_LINES = 400
MAX_FUNCTION_LINES = 50
# Words that say nothing to a reader who knows other servers; Triton has a module of the name.
PRIVATE_WORDS = re.compile(
    r"\b(told|berths?|errands?|mishaps?|nursery|(?<!triton\.)knobs?|rosters?)\b", re.I
)

SOURCES = [str(path.relative_to(ROOT)) for path in modules(*PACKAGES)]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_a_file_stays_below_the_size_of_a_split() -> None:
    assert [name for name in SOURCES if len(text(name).splitlines()) > MAX_LINES] == []


def test_a_function_fits_a_screen() -> None:
    paths = [ROOT / name for name in SOURCES]
    assert [place for place, length in functions(paths) if length > MAX_FUNCTION_LINES] == []


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


def test_no_import_hides_behind_type_checking() -> None:
    assert [name for name in SOURCES if "TYPE_CHECKING" in text(name)] == []


def test_files_use_the_words_of_the_field() -> None:
    found = [
        f"{name}:{number}: {match.group(0)}"
        for name in SOURCES
        for number, line in enumerate(text(name).splitlines(), 1)
        if (match := PRIVATE_WORDS.search(line))
    ]
    assert found == []


@pytest.mark.parametrize("tier", ["router", "model_server", "client", "fleet", "processes"])
def test_two_classes_of_a_tier_have_one_name_only_in_the_schemas_of_two_apis(tier: str) -> None:
    quartet = {"routes.py", "schema.py", "stream.py", "reply.py"}
    twins = {
        name: files
        for name, files in twin_classes(tier).items()
        if not {Path(file).name for file in files} <= quartet
    }
    assert twins == {}


def test_only_the_edge_speaks_in_status_codes() -> None:
    http = {name for name in SOURCES if re.search(r"(?<![.\w])status_code", text(name))}
    grpc = {name for name in SOURCES if "grpc.StatusCode" in text(name)}
    assert all("http/" in name or name.startswith("client/lmtp/") for name in http), http
    assert grpc <= {
        "model_server/service/service.py",
        "model_server/service/server.py",
        "router/shards/shards.py",
    }


def test_only_the_exporter_imports_opentelemetry() -> None:
    pattern = re.compile(r"^\s*(from|import) opentelemetry", re.MULTILINE)
    assert [name for name in SOURCES if pattern.search(text(name))] == ["processes/otlp.py"]


def test_the_page_of_structures_is_fresh() -> None:
    assert structures.PAGE.read_text() == structures.page(), "run: make structures"
