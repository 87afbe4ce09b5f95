"""Counts the size of the house: lines, files, twin class names, lengths of functions.

python -m tests.architecture.figures        or: make figures

The goals stand beside the figures. Generated stubs are not counted. `request_path.py` lists the
files that one request passes.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).resolve().parents[2]
# Packages whose size has a goal of its own, or that are no product.
OUTSIDE = ("constraints", "client/query", "bench", "models", "tests", "examples", "docs")
TIERS = ("router", "model_server", "client", "constraints", "fleet", "processes")
SMALL_LEN = 60


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: what was counted, and the most that it may be."""

    what: str
    value: int
    limit: int


def modules(*places: str) -> list[Path]:
    """Python files below the places, generated stubs left out, in order."""
    found: set[Path] = set()
    for place in places:
        path = ROOT / place
        found |= {path} if path.is_file() else set(path.rglob("*.py"))
    return sorted(path for path in found if "_pb2" not in path.name)


def product() -> list[Path]:
    """Every module of the product whose size is counted in the first row."""
    tops = [
        path.name
        for path in ROOT.iterdir()
        if (path.suffix == ".py" or any(path.glob("*.py"))) and not path.name.startswith(".")
    ]
    kept = modules(*tops)
    return [
        path for path in kept if not any(path.is_relative_to(ROOT / outside) for outside in OUTSIDE)
    ]


def num_lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def functions(paths: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Each function's place and its lines."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                place = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                yield place, node.end_lineno - node.lineno + 1


def twin_classes(tier: str) -> dict[str, list[str]]:
    """Public class names that stand at module level in more than one file of a tier."""
    places: dict[str, list[str]] = {}
    for path in modules(tier):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def small_modules() -> list[Path]:
    return [
        path
        for path in product()
        if path.name not in {"__init__.py", "__main__.py"} and num_lines([path]) < SMALL_LEN
    ]


def figures() -> list[Figure]:
    lengths = [length for _, length in functions(product())]
    deciles = quantiles(lengths, n=10)
    command = num_lines(modules("launcher", "processes", "fleet"))
    return [
        Figure("product lines", num_lines(product()), 36_000),
        Figure("router lines", num_lines(modules("router")), 19_500),
        Figure("router files", len(modules("router")), 125),
        Figure("launcher, processes and fleet lines", command, 4_800),
        Figure("bench lines", num_lines(modules("bench")), 3_000),
        Figure("twin class names in a tier", sum(len(twin_classes(tier)) for tier in TIERS), 10),
        Figure("function length p50", round(deciles[4]), 7),
        Figure("function length p90", round(deciles[8]), 20),
        Figure("function length max", max(lengths), 50),
        Figure("modules under 60 lines", len(small_modules()), 20),
    ]


def main() -> int:
    rows = figures()
    for row in rows:
        mark = "" if row.value <= row.limit else "   over"
        print(f"{row.what:40} {row.value:8} {row.limit:8}{mark}")
    if "--list" in sys.argv:
        for tier in TIERS:
            for name, files in twin_classes(tier).items():
                print(name, *files)
        for path in small_modules():
            print(num_lines([path]), path.relative_to(ROOT))
        for place, length in sorted(functions(product()), key=lambda pair: -pair[1])[:20]:
            print(length, place)
        folders = Counter(path.relative_to(ROOT).parts[:-1] for path in modules("router"))
        for folder, count in sorted(folders.items()):
            print("/".join(folder), count, num_lines((ROOT / Path(*folder)).glob("*.py")))
    return int(any(row.value > row.limit for row in rows))


if __name__ == "__main__":
    sys.exit(main())
