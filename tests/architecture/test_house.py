"""The laws of the house that import-linter does not hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("launcher", "router", "model_server", "client", "fleet", "native")
MAX_LINES = 400


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def names_of(paths: Iterator[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("name", names_of(sources()))
def test_a_file_stays_below_the_size_of_a_split(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", names_of(sources()))
def test_a_module_says_what_it_is(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text())
    assert not tree.body or ast.get_docstring(tree), "a module begins with a docstring"


@pytest.mark.parametrize("name", names_of(sources()))
def test_no_module_keeps_state(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text())
    rebinding = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global)]
    assert rebinding == [], "`global` rebinds module state"


@pytest.mark.parametrize("name", names_of(sources()))
def test_no_import_hides_behind_type_checking(name: str) -> None:
    assert "TYPE_CHECKING" not in (ROOT / name).read_text()


def test_only_the_edge_speaks_in_status_codes() -> None:
    http = [path for path in sources() if "status_code" in path.read_text()]
    grpc = [path for path in sources() if "grpc.StatusCode" in path.read_text()]
    edge = ROOT / "client" / "lmtp" / "handshake.py"
    assert all(path.parent.name == "http" or path == edge for path in http), http
    assert {str(path.relative_to(ROOT)) for path in grpc} <= {
        "model_server/service/interceptor.py",
        "router/shards/rank.py",
        "router/shards/shards.py",
    }


def test_traces_cost_nothing_until_they_are_asked_for() -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in [*sources(), *sorted((ROOT / "processes").glob("*.py"))]
        if re.search(r"^\s*(from|import) opentelemetry", path.read_text(), re.MULTILINE)
    }
    assert users == {"processes/otlp.py"}
    importers = [
        path for path in sources() if re.search(r"(from|import) \w+\.otlp", path.read_text())
    ]
    assert importers == []
