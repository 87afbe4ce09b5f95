"""The graph of definitions: which are reached, how deep, and which are productive."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from constraints.errors import TooComplex

# The engine recurses through definitions, so their depth is limited.
MAX_DEPTH = 300


def check_depth(starts: Iterable[str], mentions: Mapping[str, Iterable[str]]) -> set[str]:
    """The names that `starts` reach. Raises TooComplex where a chain is too long.

    mentions: by name, the names that its definition refers to, in order
    """
    seen: set[str] = set()
    for start in starts:
        if start in seen or start not in mentions:
            continue
        seen.add(start)
        ways = [iter(mentions[start])]
        while ways:
            name = next((each for each in ways[-1] if each in mentions and each not in seen), None)
            if name is None:
                ways.pop()
                continue
            seen.add(name)
            ways.append(iter(mentions[name]))
            if len(ways) > MAX_DEPTH:
                raise TooComplex(f"definitions lead to each other more than {MAX_DEPTH} deep")
    return seen


def closure(
    mentions: Mapping[str, Iterable[str]], holds: Callable[[str, set[str]], bool]
) -> set[str]:
    """The least fixed point of `holds(name, set)`, which is monotonic in the set."""
    mentioned_by: dict[str, list[str]] = defaultdict(list)
    for name, others in mentions.items():
        for other in others:
            mentioned_by[other].append(name)
    found: set[str] = set()
    pending: Collection[str] = [*mentions][::-1]
    # In rounds: what mentions thousands of names is not asked for each of them.
    while pending:
        fresh = []
        for name in pending:
            if name not in found and holds(name, found):
                found.add(name)
                fresh.append(name)
        pending = dict.fromkeys(user for name in fresh for user in mentioned_by[name])
    return found
