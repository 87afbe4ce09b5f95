"""What the command lines of all programs here have in common: their help and their progress."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def parser_of(document: str | None) -> argparse.ArgumentParser:
    """A parser whose --help is the program's own docstring, and the defaults of its options.

    The docstring's first indented line is the command, `python -m bench.NAME ...`.
    """
    lines = (document or "").splitlines()
    command = next(line.split() for line in lines if line.startswith("    python -m "))
    return _Parser(prog=" ".join(command[:3]), description=document, formatter_class=_Help)


class _Parser(argparse.ArgumentParser):
    """Lists every option with its default, those without a help of their own as well."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        options.setdefault("help", names[0].lstrip("-").replace("-", " "))
        return super().add_argument(*names, **options)


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Text as it is written, options with their defaults."""


def progress(items: Sequence[T], noun: str) -> Iterator[T]:
    """The items, while stderr shows how many are done: a bar on a terminal, else a line for each
    tenth. Several tasks may take them by turns.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, noun, console=console)
        return
    last_tenth = -1
    for number, item in enumerate(items):
        if (tenth := 10 * number // len(items)) > last_tenth:
            last_tenth = tenth
            sys.stderr.write(f"{noun}: {number} of {len(items)}\n")
        yield item
