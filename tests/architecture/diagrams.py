"""Draws docs/diagrams/*.dot as docs/images/*.svg, by Graphviz.

    make diagrams

A drawing names the digest of its text, so that a stale one is noticed where there is no Graphviz.
"""

import subprocess
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "docs" / "diagrams").glob("*.dot"))


def drawing_of(source: Path) -> Path:
    """Where a diagram is drawn."""
    return ROOT / "docs" / "images" / f"{source.stem}.svg"


def mark_of(source: Path) -> str:
    """The line at the end of a fresh drawing."""
    return f"<!-- {source.name} {sha256(source.read_bytes()).hexdigest()} -->"


def main() -> None:
    for source in SOURCES:
        drawn = subprocess.run(
            ["dot", "-Tsvg", str(source)], check=True, capture_output=True, text=True
        )
        drawing_of(source).write_text(f"{drawn.stdout.rstrip()}\n{mark_of(source)}\n")


if __name__ == "__main__":
    main()
