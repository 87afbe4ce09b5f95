"""Writes the file tables of docs/structures.md from the first sentences of module docstrings.

python -m tests.architecture.structures        or: make structures

What stands above the marker is written by hand.
"""

import ast
import re
import sys
from pathlib import Path

from tests.architecture.figures import ROOT, modules

PAGE = ROOT / "docs" / "structures.md"
MARKER = "<!-- From here on generated: make structures -->\n"
FOLDERS = (
    "launcher",
    "processes",
    "router",
    "model_server",
    "proto",
    "constraints",
    "client",
    "fleet",
    "native",
    "models",
    "bench",
)


def page() -> str:
    """The page as it has to be: the part by hand as it stands, and tables of today's files."""
    by_hand, _, _ = PAGE.read_text().partition(MARKER)
    return by_hand + MARKER + "\n" + "\n".join(_table(folder) for folder in _folders())


def _folders() -> list[Path]:
    """Every folder with modules, those of a folder behind it, in the order of the floors."""
    found = {path.parent: None for place in FOLDERS for path in modules(place)}
    return list(found)


def _table(folder: Path) -> str:
    name = folder.relative_to(ROOT)
    rows = [
        f"| `{path.name}` | {summary(path)} |"
        for path in sorted(folder.glob("*.py"))
        if path.name != "__init__.py" and "_pb2" not in path.name
    ]
    if not rows:
        return ""
    title = "The top" if folder == ROOT else f"{name}/"
    return "\n".join([f"## {title}", "", "| file | what |", "|---|---|", *rows, ""])


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, on one line, without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = re.split(r"(?<=[.:;])\s|\n\n", docstring.strip(), maxsplit=1)[0]
    return " ".join(first.split()).rstrip(".:;").replace("|", "\\|")


def main() -> int:
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
