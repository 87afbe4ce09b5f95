"""Definitions that refer to each other."""

from collections import Counter

from constraints.definition_graph import closure


def test_what_mentions_many_names_is_asked_few_times() -> None:
    names = [f"name {number}" for number in range(500)]
    mentions = {**dict.fromkeys(names, ()), "all": names, "half": ["all"], "none": ["none"]}
    asked: Counter[str] = Counter()

    def holds(name: str, known: set[str]) -> bool:
        asked[name] += 1
        return known.issuperset(mentions[name])

    for order in (1, -1):
        asked.clear()
        found = closure(dict([*mentions.items()][::order]), holds)
        assert found == {*names, "all", "half"}
        assert asked["all"] <= 2
