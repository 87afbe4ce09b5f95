"""Clauses for tests: as text and as terms, drawn at random, and judged by Python.

term(clause)                 what reading makes of the text
holds(clause, holes)         whether it holds: evaluated as it is written, over ten lines of
                             plain Python, with nothing of the planner or of the server's language
Conditions                   draws clauses around texts of holes (witnesses) that satisfy most of
                             them: what the witnesses do not satisfy is mostly turned around
random_program               whole programs, with what they ask of a run
admits(plan, text, ...)      whether a plan lets a server write this text, by what is asked for
"""

import builtins
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from client.calls import Constraint
from client.query.conditions import terms as build
from client.query.conditions.evaluate import Finished, evaluate
from client.query.conditions.planner import HolePlan
from client.query.conditions.terms import Term
from client.query.errors import Place
from client.query.reading.reader import read
from constraints.where.evaluate import holds as server_holds
from constraints.where.parser import parse
from tests.client.query.reading.recorder import holes_of


def term(clause: str, holes: Iterable[str] = "XYZ", **values: object) -> Term:
    """The clause as a term over these holes; other names are Python's, their values given.

    Its places are those of the third line.
    """
    prompt = "".join(f"[{name}]" for name in holes)
    program = read(f'"{prompt}"\nwhere\n{clause}', namespace=values)
    conditions = dict.fromkeys(each for hole in holes_of(program) for each in hole.conditions)
    return build.all_(Place(3, 1, 3, len(clause) + 1), *conditions)


class Text(str):
    """A hole's text and how many tokens it has."""

    num_tokens: int = 0

    @classmethod
    def of(cls, text: str, num_tokens: int = 0) -> "Text":
        made = cls(text)
        made.num_tokens = num_tokens
        return made


@dataclass(frozen=True)
class _Value:
    """What `int(X)` is: a condition, and a number that compares with nothing if there is none."""

    number: Decimal | None

    def __bool__(self) -> bool:
        return self.number is not None

    def _related(self, holds: Callable[[Decimal], bool]) -> bool:
        return self.number is not None and holds(self.number)

    def __lt__(self, other: object) -> bool:
        return self._related(lambda number: number < _exact(other))

    def __le__(self, other: object) -> bool:
        return self._related(lambda number: number <= _exact(other))

    def __gt__(self, other: object) -> bool:
        return self._related(lambda number: number > _exact(other))

    def __ge__(self, other: object) -> bool:
        return self._related(lambda number: number >= _exact(other))

    def __eq__(self, other: object) -> bool:
        return self._related(lambda number: number == _exact(other))

    def __ne__(self, other: object) -> bool:
        return self._related(lambda number: number != _exact(other))


def _exact(number: object) -> Decimal:
    if isinstance(number, _Value):
        assert number.number is not None
        return number.number
    return Decimal(str(number))


def _number(pattern: str) -> Callable[[object], _Value]:
    def number(about: object) -> _Value:
        text = str(about)
        return _Value(Decimal(text) if re.fullmatch(pattern, text) else None)

    return number


def _phrases(phrases: tuple[object, ...]) -> tuple[str, ...]:
    if len(phrases) == 1 and not isinstance(phrases[0], str):
        return tuple(phrases[0])  # type: ignore[arg-type]
    return tuple(map(str, phrases))


_OPERATORS: dict[str, object] = {
    "words": lambda text: text.split(),
    "sentences": lambda text: re.findall(r"[^.]*\.|[^.]+", text),
    "tokens": lambda text: range(text.num_tokens),
    "characters": list,
    "int": _number(r"-?[0-9]+"),
    "float": _number(r"-?[0-9]+(\.[0-9]+)?"),
    "regex": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "starts_with": lambda text, *phrases: text.startswith(_phrases(phrases)),
    "ends_with": lambda text, *phrases: text.endswith(_phrases(phrases)),
    "stops_at": lambda text, *phrases: all(
        text.find(phrase) in (-1, len(text) - len(phrase)) for phrase in _phrases(phrases)
    ),
    "stops_before": lambda text, *phrases: not any(phrase in text for phrase in _phrases(phrases)),
}


def holds(clause: str, holes: Mapping[str, object], **values: object) -> bool:
    """Whether the clause holds where each hole has this value: a Text, or a number."""
    capitals = {name.upper(): function for name, function in _OPERATORS.items()}
    known = {**vars(builtins), **_OPERATORS, **capitals, **values, **holes}
    return bool(eval(clause, {"__builtins__": {}}, known))


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
            return one.value in (one.text, _as_int(one.text))
    allowed = eval(hole.kind, {"__builtins__": {}})
    if isinstance(allowed, list):
        return one.value == one.text and one.text in allowed
    return one.value == one.text and re.fullmatch(allowed, one.text) is not None


def _as_int(text: str) -> object:
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


def admits(plan: HolePlan, text: str, num_tokens: int) -> bool:
    """Whether a hole may have this text: as it stays in the prompt."""
    if plan.max_tokens is not None and num_tokens > plan.max_tokens:
        return False
    if plan.constraint is not None and not _is_legal(plan.constraint, text, num_tokens):
        return False
    return not plan.stop or _is_ended(plan, text)


def _is_legal(constraint: Constraint, text: str, num_tokens: int) -> bool:
    match constraint:
        case Constraint("choice", list(values)):
            return text in values
        case Constraint("regex", str(pattern)):
            return re.fullmatch(pattern, text) is not None
        case Constraint("where", str(clause)):
            return server_holds(parse(clause), text, num_tokens)
    raise AssertionError(constraint)


def _is_ended(plan: HolePlan, text: str) -> bool:
    """Whether a server that ends at the first stop string may have shown this."""
    for output in (text, *(text + phrase for phrase in plan.stop)):
        shown = output
        ends = [output.find(phrase) + len(phrase) for phrase in plan.stop if phrase in output]
        if ends and min(ends) < len(output):
            continue
        if ends and not plan.keeps_stop:
            found = (phrase for phrase in plan.stop if output.endswith(phrase))
            shown = output[: -max(map(len, found))]
        if shown == text:
            return True
    return False


def all_hold(checks: tuple[Term, ...], holes: Mapping[str, Finished]) -> bool:
    """Whether every check holds; all holes in them are finished."""
    truths = [evaluate(check, holes) for check in checks]
    assert None not in truths
    return all(truths)
