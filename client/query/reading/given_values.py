"""Variables that a text receives and assigns again: they start with the given value.

    options = options.split(",")        options = __tandem_given_options
                                        options = options.split(",")

In a module this is plain Python. A program's code is in a function, where such a name would be
unbound until that line.
"""

import ast
import builtins
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from client.query.reading.nodes import CALLS, load

_GIVEN = f"{CALLS}_given_"


def given_names(
    bound: AbstractSet[str], given: AbstractSet[str], holes: AbstractSet[str]
) -> AbstractSet[str]:
    """The names that a program binds and that have an outside value: `given` ones and builtins.

    Holes named like a builtin are excluded, since the builtin is probably not meant.
    """
    return bound & (given | (set(dir(builtins)) - holes))


def initial_assignments(names: Iterable[str]) -> list[ast.stmt]:
    """The assignments at the start of the program's functions."""
    return [_assigned(name, f"{_GIVEN}{name}") for name in sorted(names)]


def outer_assignments(names: Iterable[str]) -> list[ast.stmt]:
    """The assignments around these functions, where the names have their outside values."""
    return [_assigned(f"{_GIVEN}{name}", name) for name in sorted(names)]


def _assigned(name: str, value: str) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], load(value))
