"""Random clauses, drawn around texts of the holes that satisfy most of them.

A clause is Python's text, so `judge.holds` says what is true of it. A condition that the witnesses
do not satisfy is mostly turned around, so that most clauses can be satisfied and some cannot.
"""

from collections.abc import Callable, Sequence
from random import Random

from tests.client.query.conditions.judge import Text, holds

RELATIONS = ("<", "<=", "==", "!=", ">=", ">")
# Small alphabets make texts collide.
_WORDS = ("a", "b", "ab", "ba", "cat", "is", "3", "12", "-7", "0.5", "so")
_JOINTS = (" ", " ", " ", ".", ". ", "\n", "")
_PATTERNS = (
    r"[a-z ]*",
    r"(ab|b|c)*",
    r"[^\n]*",
    r"\w+( \w+)*",
    r"[a-z]+[.!]?",
    r".{2,6}",
    r"-?\d+(\.\d+)?",
    r"[A-Za-z ,.]+",
)
_OPAQUE = (
    "{X}.strip() == {X}",
    "{X}.lower() == {X}",
    "{X}.lower() in ['a', 'ab', 'ab.', '7 up']",
    "'AB' != {X}.upper()",
    "'b' in {X}.lower()",
    "starts_with({X}.upper(), 'A', 'CA')",
    "{X}.count('a') < 3",
    "{X}[:1] != ' '",
    "sum(map(ord, {X})) % 3 > 0",
)


def random_text(random: Random, max_words: int = 4) -> str:
    """A short text of few words."""
    text = ""
    for _ in range(random.randrange(max_words + 1)):
        text += random.choice(_WORDS) + random.choice(_JOINTS)
    return text


class Conditions:
    """Draws conditions over holes with these witnesses.

    checks: whether a part may be Python's own, which a server cannot keep
    """

    def __init__(self, random: Random, witnesses: dict[str, Text], *, checks: bool = True) -> None:
        self._random = random
        self._witnesses = witnesses
        self._checks = checks

    def clause(self, name: str, others: Sequence[str] = (), num_parts: int = 3) -> str:
        """A conjunction about the hole `name`, some parts of it about the others too."""
        parts = [self._part(name, others, 2) for _ in range(self._random.randint(1, num_parts))]
        if self._random.random() < 0.3:
            parts.append(self._stop(name))
        self._random.shuffle(parts)
        return " and ".join(parts)

    def _part(self, name: str, others: Sequence[str], depth: int) -> str:
        kind = self._random.random()
        if depth == 0 or kind < 0.6:
            return self._turned(self._atom(name, others))
        if kind < 0.75:
            return f"not ({self._turned_away(self._part(name, others, depth - 1))})"
        joined = " or " if kind < 0.9 else " and "
        parts = [self._part(name, others, depth - 1) for _ in range(2)]
        return f"({joined.join(parts)})"

    def _turned(self, atom: str) -> str:
        """The condition, or its opposite if the witnesses want that."""
        if self._holds(atom) or self._random.random() < 0.1:
            return atom
        return f"not ({atom})"

    def _turned_away(self, part: str) -> str:
        return part if not self._holds(part) or self._random.random() < 0.1 else f"not ({part})"

    def _holds(self, clause: str) -> bool:
        return holds(clause, self._witnesses)

    def _atom(self, name: str, others: Sequence[str]) -> str:
        pick = self._random.random()
        if others and pick < 0.35:
            return self._relation(name, self._random.choice(others))
        if self._checks and pick > 0.93:
            return self._random.choice(_OPAQUE).replace("{X}", name)
        draw: Callable[[str], str] = self._random.choice(
            (self._count, self._chain, self._member, self._phrase, self._edge, self._shape)
        )
        return draw(name)

    def _stop(self, name: str) -> str:
        """Phrases that the witness does not forbid, if it can be."""
        operator = self._random.choice(("stops_at", "stops_before", "STOPS_AT"))
        phrases = self._random.sample([".", "\n", "so", "ab", "!"], self._random.randint(1, 2))
        listed = ", ".join(map(repr, phrases))
        return f"{operator}({name}, {listed})"

    def _measure(self, name: str) -> tuple[str, int]:
        text = self._witnesses[name]
        return self._random.choice(
            (
                (f"len({name})", len(text)),
                (f"len(words({name}))", len(text.split())),
                (f"len(sentences({name}))", text.count(".") + 1),
                (f"len(tokens({name}))", text.num_tokens),
            )
        )

    def _count(self, name: str) -> str:
        measure, count = self._measure(name)
        relation = self._random.choice(RELATIONS)
        bound = count + self._random.randint(-2, 3)
        if self._random.random() < 0.2:
            return f"{bound} {relation} {measure}"
        return f"{measure} {relation} {bound}"

    def _chain(self, name: str) -> str:
        measure, count = self._measure(name)
        low, high = (self._random.randint(0, 3) for _ in range(2))
        return f"{count - low} <= {measure} < {count + high}"

    def _member(self, name: str) -> str:
        texts = [random_text(self._random, 2) for _ in range(self._random.randint(1, 4))]
        if self._random.random() < 0.5:
            texts.append(str(self._witnesses[name]))
        relation = self._random.choice(("in", "not in", "==", "!="))
        shown = repr(texts) if "in" in relation else repr(texts[-1])
        return f"{name} {relation} {shown}"

    def _phrase(self, name: str) -> str:
        relation = self._random.choice(("in", "not in"))
        return f"{self._piece(name)!r} {relation} {name}"

    def _edge(self, name: str) -> str:
        operator = self._random.choice(("starts_with", "ends_with"))
        phrases = [self._piece(name) for _ in range(self._random.randint(1, 2))]
        shown = repr(phrases) if self._random.random() < 0.5 else ", ".join(map(repr, phrases))
        return f"{operator}({name}, {shown})"

    def _piece(self, name: str) -> str:
        text = str(self._witnesses[name])
        start = self._random.randint(0, len(text))
        found = text[start : start + self._random.randint(1, 3)]
        return found or self._random.choice(_WORDS)

    def _shape(self, name: str) -> str:
        pick = self._random.random()
        if pick < 0.6:
            return f"regex({name}, {self._random.choice(_PATTERNS)!r})"
        bound = self._random.randint(-10, 15)
        relation = self._random.choice(RELATIONS)
        if pick < 0.7:
            return f"int({name})"
        if pick < 0.8:
            return f"float({name}) {relation} {bound / 4}"
        return f"int({name}) {relation} {bound}"

    def _relation(self, name: str, other: str) -> str:
        forms = [
            "{X} != {Y}",
            "{X} == {Y}",
            "len({X}) {r} len({Y})",
            "len({X}) {r} len({Y}) + 2",
            "len(words({X})) {r} len(words({Y}))",
            "{X} in {Y}.split()",
            "{X} in {Y}",
            "{Y} in {X}",
            "{Y} not in {X}",
            "starts_with({X}, {Y})",
            "ends_with({Y}, {X})",
        ]
        form = self._random.choice(forms)
        relation = self._random.choice(RELATIONS)
        return form.replace("{X}", name).replace("{Y}", other).replace("{r}", relation)


def witnesses(random: Random, names: Sequence[str]) -> dict[str, Text]:
    """A text for each hole, its tokens counted as one for each two characters."""
    texts = (random_text(random) for _ in names)
    return {
        name: Text.of(text, (len(text) + 1) // 2) for name, text in zip(names, texts, strict=True)
    }
