"""A program that was read: what `reading/` makes and `running/` runs. Frozen words.

A program's body is an async function that is handed a Context and calls it for every piece of its
prompts; it is run anew, with the answers that are known, wherever a trace forks or goes back.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from client.query.conditions.terms import Term
from client.query.place import Place, Source

# A `where` clause, ready to be asked at a hole: Python's variables are taken as they are then.
Condition = Callable[[], Term]


@dataclass(frozen=True, slots=True)
class PromptCondition:
    """A condition behind a prompt with the holes `here`, which names others, too.

    It speaks of these as they are when the prompt is reached. `variables` are those of them that
    the program binds itself, too, each with what reads it (and raises NameError).
    """

    condition: Condition
    here: frozenset[str]
    variables: tuple[tuple[str, Callable[[], object]], ...] = ()

    def __call__(self) -> Term:
        return self.condition()


@dataclass(frozen=True, slots=True)
class Decorator:
    """`@f` or `@f(a)` in front of a hole's name; `function` is called on its value."""

    function: Callable[..., Any]
    place: Place


@dataclass(frozen=True, slots=True)
class FutureCondition:
    """What a program surely says of holes that are not there yet, as a hole is asked.

    `conditions` hold of them when they come, and of this one they do not speak. `decorated` are
    holes whose variables decorators may change: later conditions see these, not what was written.
    """

    conditions: tuple[Condition, ...] = ()
    decorated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """`[NAME]`, as the program has reached it.

    `kind` is what stands behind the colon: int, float, bool, str, a string (a regular expression),
    a dataclass, a dict (a JSON schema), a Subquery; None: nothing does.
    `conditions`: those of its string, then the program's own. `support`: the values of a
    distribution over this hole, None if there is none. `future`: what is known of others.
    `is_last`: its program comes to no other hole behind it, whatever fills it.
    """

    name: str
    place: Place
    kind: object | None = None
    decorators: tuple[Decorator, ...] = ()
    conditions: tuple[Condition, ...] = ()
    support: tuple[str, ...] | None = None
    future: FutureCondition = field(default_factory=FutureCondition)
    is_last: bool = False


class Context(Protocol):
    """What a body asks of who runs it; one for each run of it. Programs may say `context`, too."""

    @property
    def prompt(self) -> str:
        """The prompt up to here."""
        ...

    def say(self, text: str, place: Place) -> None:
        """Fixed text of a prompt, recalled values in it. Costs no request."""
        ...

    def role(self, name: str, place: Place) -> None:
        """`{:name}`: what follows is a turn of system, user or assistant."""
        ...

    async def hole(self, hole: Hole) -> Any:
        """The value that the hole's variable is bound to."""
        ...

    def on_caught(self) -> None:
        """A handler has caught something, which is raised again if it ends a closed run."""
        ...

    def on_loop(self, cleans_up: bool) -> None:
        """A loop begins once more. Raises CancelledError in a closed run; where it cleans up, only
        if that has asked for a hole.
        """
        ...


@dataclass(frozen=True, slots=True)
class DecoderClause:
    """`argmax`, `sample(n=2)` ... as it stands in a program: a name and its arguments."""

    name: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]
    place: Place


@dataclass(frozen=True, slots=True)
class ModelClause:
    """What stands behind `from`."""

    value: object
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program. `body(context, *arguments)` runs it and returns what it returns.

    `decoder` and `model` are evaluated when the program is run, with the same arguments (a clause
    may name a parameter); None: the clause is absent.
    `parameter_places`: where the parameters of a template first stand in it.
    `hole_names` are all names of holes in its text. `returns`: it returns a value somewhere.
    """

    name: str
    source: Source
    parameters: tuple[str, ...]
    body: Callable[..., Awaitable[object]]
    hole_names: frozenset[str]
    returns: bool
    decoder: Callable[..., DecoderClause] | None = None
    model: Callable[..., ModelClause] | None = None
    parameter_places: Mapping[str, Place] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Subquery:
    """`[X: f]` or `[X: f(a, k=v)]`: the program that fills a hole, and what it is given."""

    program: Program
    arguments: tuple[object, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


class HasProgram(Protocol):
    """What may stand behind a hole's colon as a nested query: a decorated function, an F."""

    @property
    def program(self) -> Program:
        """The program that a call of it runs."""
        ...
