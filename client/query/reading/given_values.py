"""What a text is given, and its own code binds anew: the variable begins with the given value.

    options = options.split(",")        options = __tandem_given_options
                                        options = options.split(",")

In a module that is Python. A program's code stands in a function, in which such a name would have
no value until that line.
"""

import ast
import builtins
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from client.query.reading.nodes import CALLS, load

_GIVEN = f"{CALLS}_given_"


def given_of(
    bound: AbstractSet[str], given: AbstractSet[str], holes: AbstractSet[str]
) -> AbstractSet[str]:
    """Those of the names that a program binds which have a value from outside: `given` ones, and
    Python's own. A hole with a name of Python's has none: that name was hardly meant.
    """
    return bound & (given | (set(dir(builtins)) - holes))


def beginning(names: Iterable[str]) -> list[ast.stmt]:
    """What the program's functions begin with."""
    return [_assigned(name, f"{_GIVEN}{name}") for name in sorted(names)]


def kept(names: Iterable[str]) -> list[ast.stmt]:
    """What stands around these functions, where the names are still those from outside."""
    return [_assigned(f"{_GIVEN}{name}", name) for name in sorted(names)]


def _assigned(name: str, value: str) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], load(value))
