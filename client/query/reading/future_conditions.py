"""Finds the conditions that surely apply to future holes, given at an earlier hole.

    "[A]"
    "[B: int]"                                      at A: B < 5, type(B) is int
    where len(A) + B < 9 and B < 5 and B > n        B > n only at B: n may be unbound before
    distribute C over ["x", "yy"]                   at A: C in ["x", "yy"]

A condition can apply in advance if it consists of holes, operators and constants only. One behind a
prompt also needs holes that occur only once: another prompt could request them without it.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from client.query.reading.nodes import load
from client.query.reading.template import HoleTag
from client.query.reading.where_clauses import Conjunct, WhereClauses

# Kinds that imply ranges of numbers.
_KINDS = ("int", "float")


@dataclass(frozen=True, slots=True)
class PromptConditions:
    """The holes of a prompt, and the conditions behind its `where`."""

    tags: Sequence[HoleTag]
    conjuncts: Sequence[Conjunct]


class FutureConditions:
    """Finds the future conditions at a hole. Immutable."""

    def __init__(
        self,
        said: Sequence[PromptConditions],
        program_where: Sequence[tuple[str, Conjunct]],
        clauses: WhereClauses,
        rebound: AbstractSet[str],
        chosen: Sequence[Conjunct] = (),
    ) -> None:
        """`program_where`, `rebound`: as for PromptRewriter. `chosen`: conditions on holes that are
        always chosen from certain values."""
        tags = [tag for one in said for tag in one.tags]
        own: list[tuple[ast.expr, Conjunct]] = [(load(name), part) for name, part in program_where]
        behind = [(part, one.tags) for one in said for part in one.conjuncts]
        self._links = [part.holes for _, part in own] + [part.holes for part, _ in behind]
        counts = Counter(tag.name for tag in tags)
        future = [(code, part) for code, part in own if part.is_plain]
        future += [
            (part.function, part)
            for part, here in behind
            if part.is_plain and _is_sure(part, here, counts, rebound)
        ]
        future += [(part.function, part) for part in chosen if part.is_plain]
        self._future = future + [(part.function, part) for part in _kinds(tags, clauses)]
        self._decorated = frozenset(tag.name for tag in tags if tag.decorators)

    def conditions(self, hole: str) -> list[ast.expr]:
        """The condition functions of other holes that are linked to this one by conditions."""
        linked = self._linked(hole)
        return [
            code
            for code, part in self._future
            if hole not in part.holes and not part.holes.isdisjoint(linked)
        ]

    def decorated(self, hole: str) -> frozenset[str]:
        """The linked holes whose values decorators may change."""
        return self._decorated & self._linked(hole)

    def _linked(self, hole: str) -> frozenset[str]:
        """The other holes that conditions link to this one, transitively."""
        found: frozenset[str] = frozenset()
        new = frozenset((hole,))
        while not new <= found:
            found |= new
            new = frozenset().union(*(link for link in self._links if link & found))
        return found - {hole}


def _is_sure(
    part: Conjunct, tags: Sequence[HoleTag], counts: Counter[str], rebound: AbstractSet[str]
) -> bool:
    """Whether a condition behind a prompt applies wherever its holes are filled, and has the same
    meaning before the prompt is reached."""
    here = {tag.name for tag in tags}
    is_once = all(counts[hole] == 1 for hole in part.holes)
    return bool(part.holes & here) and is_once and rebound.isdisjoint(part.holes - here)


def _kinds(tags: Sequence[HoleTag], clauses: WhereClauses) -> Iterator[Conjunct]:
    """`type(X) is int` for holes that have this kind everywhere."""
    written: dict[str, set[str]] = {}
    for tag in tags:
        written.setdefault(tag.name, set()).add(tag.kind.code.strip() if tag.kind else "")
    for tag in {tag.name: tag for tag in tags}.values():
        (kind, *others) = written[tag.name]
        if kind in _KINDS and not others:
            yield from clauses.of_kind(tag.name, kind, tag.span)
