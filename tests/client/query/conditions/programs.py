"""Random whole programs, and whether what a run of one made is what the program asks for.

    argmax(max_tokens=24)
        "Q: [A]\n"
        "is[B: int] or[C]" where C in A.split() and len(C) > B
    where
        len(words(A)) < 4 and stops_at(A, ".")

The judge is Python itself (judge.py): each clause is evaluated as it is written.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from tests.client.query.conditions.judge import Text, holds
from tests.client.query.conditions.random_clauses import RELATIONS, Conditions, random_text

_CHOICES = ("yes", "no", "ab", "ba", "it is", "")
_PATTERN = "r'[a-z]{2,6}'"
_FIXED = ("Q: ", "\nA:", " is ", "\n", " and ", ", so ", "The cat: ")


@dataclass(frozen=True)
class RandomHole:
    """A hole: its name, and what stands behind its colon ("" for text)."""

    name: str
    kind: str

    @property
    def is_text(self) -> bool:
        return self.kind not in ("int", "float", "bool")


@dataclass(frozen=True)
class Made:
    """What a run made of a hole: the variable's value, the text in the prompt, its tokens."""

    value: object
    text: str
    num_tokens: int


@dataclass(frozen=True)
class RandomProgram:
    """A program: its text, its holes in order, and all of its conditions."""

    text: str
    holes: tuple[RandomHole, ...]
    clauses: tuple[str, ...]

    def broken(self, made: Mapping[str, Made]) -> list[str]:
        """What does not hold: conditions, and types of holes."""
        wrong = [hole.name + ": " + hole.kind for hole in self.holes if not _fits(hole, made)]
        if wrong:
            return wrong
        values = {hole.name: judged(hole, made[hole.name]) for hole in self.holes}
        return [clause for clause in self.clauses if not holds(clause, values)]


def _fits(hole: RandomHole, made: Mapping[str, Made]) -> bool:
    """Whether the value is of the hole's type, and what its text says."""
    one = made[hole.name]
    match hole.kind:
        case "int":
            return type(one.value) is int and one.value == int(one.text)
        case "float":
            return type(one.value) is float and one.value == float(one.text)
        case "bool":
            return type(one.value) is bool and str(one.value) == one.text
        case "":
            # A condition `int(X)` says what the hole is, too.
            return one.value in (one.text, _number(one.text))
    allowed = eval(hole.kind, {"__builtins__": {}})
    if isinstance(allowed, list):
        return one.value == one.text and one.text in allowed
    return one.value == one.text and re.fullmatch(allowed, one.text) is not None


def _number(text: str) -> object:
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else None


def judged(hole: RandomHole, made: Made) -> object:
    """What a clause sees of it."""
    if hole.kind == "float":
        return Decimal(made.text)
    return Text.of(made.text, made.num_tokens) if hole.is_text else made.value


def random_program(random: Random) -> RandomProgram:
    """A program of one to three holes."""
    names = "ABC"[: random.randint(1, 3)]
    holes = tuple(RandomHole(name, _kind(random)) for name in names)
    witnesses = {hole.name: witness_of(random, hole) for hole in holes}
    clauses: dict[str, str] = {}
    for index, hole in enumerate(holes):
        if random.random() < 0.85:
            around = holes[:index] if random.random() < 0.8 else holes
            others = [other for other in around if other is not hole]
            clauses[hole.name] = clause_about(random, hole, others, witnesses)
    return RandomProgram(_written(random, holes, clauses), holes, tuple(clauses.values()))


def _kind(random: Random) -> str:
    listed = repr(random.sample(_CHOICES[:-1], random.randint(1, 4)))
    return random.choice(("", "", "", "", "", "int", "int", "float", "bool", listed, _PATTERN))


def witness_of(random: Random, hole: RandomHole) -> object:
    """A value that the hole could have."""
    match hole.kind:
        case "int":
            return random.randint(-9, 14)
        case "float":
            return Decimal(random.randint(-12, 24)) / 4
        case "bool":
            return random.random() < 0.5
        case "":
            text = random_text(random)
        case _ if hole.kind == _PATTERN:
            text = random.choice(("cat", "ab", "abcdef", "so"))
        case _:
            text = random.choice(eval(hole.kind, {"__builtins__": {}}))
    return Text.of(text, (len(text) + 1) // 2)


def clause_about(
    random: Random,
    hole: RandomHole,
    others: Sequence[RandomHole],
    witnesses: Mapping[str, object],
) -> str:
    """A clause about a hole, and perhaps others, most of it true of the witnesses."""
    if hole.is_text:
        texts = {name: text for name, text in witnesses.items() if isinstance(text, Text)}
        names = [other.name for other in others if other.name in texts]
        return Conditions(random, texts).clause(hole.name, names)
    draw = _value_condition if hole.kind != "bool" else _truth
    atoms = [draw(random, hole, others, witnesses) for _ in range(random.randint(1, 2))]
    parts = [atom if holds(atom, witnesses) else f"not ({atom})" for atom in atoms]
    return " and ".join(parts)


def _truth(
    random: Random, hole: RandomHole, _: Sequence[RandomHole], __: Mapping[str, object]
) -> str:
    form = random.choice(("{X}", "{X} is True", "{X} == False", "{X} != True", "{X} in [True]"))
    return form.replace("{X}", hole.name)


def _value_condition(
    random: Random,
    hole: RandomHole,
    others: Sequence[RandomHole],
    witnesses: Mapping[str, object],
) -> str:
    value = witnesses[hole.name]
    assert isinstance(value, int | Decimal)
    relation = random.choice(RELATIONS)
    forms = [
        f"{hole.name} {relation} {value + random.randint(-2, 3)}",
        f"{value - random.randint(0, 3)} <= {hole.name} <= {value + random.randint(0, 3)}",
        f"{hole.name} in [{value}, {value + 3}]",
        f"{hole.name} not in [{value + 1}, {value - 1}]",
    ]
    if hole.kind == "int":
        forms += [f"{hole.name} in range({value - 2}, {value + 4})", f"{hole.name} % 2 == 0"]
    numbers = [other.name for other in others if other.kind == hole.kind]
    forms += [f"{hole.name} {relation} {name}" for name in numbers]
    texts = [other.name for other in others if other.is_text]
    forms += [f"{hole.name} {relation} len({name})" for name in texts]
    return random.choice(forms)


def _written(random: Random, holes: Sequence[RandomHole], clauses: Mapping[str, str]) -> str:
    """The program's text; a condition stands with its prompt or below the program."""
    decoder = random.choice(
        ("argmax(max_tokens={n})", "sample(temperature=1.3, seed={s}, max_tokens={n})")
    )
    lines = [
        decoder.replace("{n}", str(random.randint(12, 30))).replace(
            "{s}", str(random.randrange(99))
        )
    ]
    below = []
    for hole in holes:
        fixed = random.choice(_FIXED).replace("\n", "\\n")
        shown = f"{hole.name}: {hole.kind}" if hole.kind else hole.name
        line = f'    "{fixed}[{shown}]"'
        clause = clauses.get(hole.name)
        names_others = clause is not None and any(
            other.name in clause for other in holes if other is not hole
        )
        if clause is not None and (names_others or random.random() < 0.5):
            below.append(f"({clause})" if " or " in clause else clause)
        elif clause is not None:
            line += f" where {clause}"
        lines.append(line)
    if below:
        lines += ["where", "    " + " and\n    ".join(below)]
    return "\n".join(lines) + "\n"
