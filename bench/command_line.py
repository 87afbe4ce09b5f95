"""What the command lines of all programs here have in common: their help and their progress."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def parser_of(document: str | None) -> argparse.ArgumentParser:
    """A parser whose --help is the program's own docstring, and the defaults of its options.

    The docstring's first indented line is the command, `python -m bench.NAME ...`.
    """
    lines = (document or "").splitlines()
    command = next(line.split() for line in lines if line.startswith("    python -m "))
    return argparse.ArgumentParser(
        prog=" ".join(command[:3]), description=document, formatter_class=_Help
    )


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Text as it is written, options with their defaults."""


def progress(items: Sequence[T], noun: str) -> Iterator[T]:
    """The items, while stderr shows how many are done and how long the rest will take."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, noun, console=console)
        return
    for number, item in enumerate(items):
        sys.stderr.write(f"{noun}: {number} of {len(items)}\n")
        yield item
