"""Clauses for tests: as text and as terms, drawn at random, and judged by Python.

term(clause)                 what reading makes of the text
holds(clause, holes)         whether it holds: evaluated as it is written, over ten lines of
                             plain Python, with nothing of the planner or of the server's language
Clauses                      draws clauses around values of holes (witnesses) that satisfy most of
                             them: what the witnesses do not satisfy is mostly turned around
KINDS                        what may stand behind a hole's colon
random_program               whole programs, with what they ask of a run
admits(plan, text, ...)      whether a plan lets a server write this text, by what is asked for
"""

import builtins
import decimal
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
    """A hole's text and how many tokens it has: one for each two characters by default."""

    num_tokens: int

    def __new__(cls, text: str, num_tokens: int | None = None) -> "Text":
        made = super().__new__(cls, text)
        made.num_tokens = (len(text) + 1) // 2 if num_tokens is None else num_tokens
        return made


class _Number(Decimal):
    """What `int(X)` is: a condition, and a number; NaN, which compares with nothing, if none."""

    def __bool__(self) -> bool:
        return not self.is_nan()

    def __ne__(self, other: object) -> bool:
        return bool(self) and super().__ne__(other)

    @classmethod
    def reader(cls, pattern: str) -> "Callable[[object], _Number]":
        return lambda text: cls(str(text) if re.fullmatch(pattern, str(text)) else "NaN")


def _phrases(phrases: tuple[object, ...]) -> tuple[str, ...]:
    if len(phrases) == 1 and not isinstance(phrases[0], str):
        return tuple(phrases[0])  # type: ignore[arg-type]
    return tuple(map(str, phrases))


_OPERATORS: dict[str, object] = {
    "words": lambda text: text.split(),
    "sentences": lambda text: re.findall(r"[^.]*\.|[^.]+", text),
    "tokens": lambda text: range(text.num_tokens),
    "characters": list,
    "int": _Number.reader(r"-?[0-9]+"),
    "float": _Number.reader(r"-?[0-9]+(\.[0-9]+)?"),
    "regex": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "starts_with": lambda text, *phrases: text.startswith(_phrases(phrases)),
    "ends_with": lambda text, *phrases: text.endswith(_phrases(phrases)),
    "stops_at": lambda text, *phrases: all(
        text.find(phrase) in (-1, len(text) - len(phrase)) for phrase in _phrases(phrases)
    ),
    "stops_before": lambda text, *phrases: not any(phrase in text for phrase in _phrases(phrases)),
}


def holds(clause: str, holes: Mapping[str, object]) -> bool:
    """Whether the clause holds where each hole has this value: a Text, or a number."""
    capitals = {name.upper(): function for name, function in _OPERATORS.items()}
    known = {**vars(builtins), **_OPERATORS, **capitals, **holes}
    with decimal.localcontext(decimal.Context(traps=[])):
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
_BETWEEN = (
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
)
_TRUTHS = ("{X}", "{X} is True", "{X} == False", "{X} != True", "{X} in [True]")


def random_text(random: Random, max_words: int = 4) -> str:
    """A short text of few words."""
    num_words = random.randrange(max_words + 1)
    return "".join(random.choice(_WORDS) + random.choice(_JOINTS) for _ in range(num_words))


class Clauses:
    """Draws conditions over holes with these witnesses: texts, numbers and truths.

    checks: whether a part may be Python's own, which a server cannot keep
    """

    def __init__(
        self, random: Random, witnesses: Mapping[str, object], *, checks: bool = True
    ) -> None:
        self._random = random
        self._witnesses = witnesses
        self._checks = checks

    def about(self, name: str, others: Iterable[str] = ()) -> str:
        """A conjunction about the hole `name`, some parts of it about the others too."""
        parts = [self._part(name, tuple(others), 2) for _ in range(self._random.randint(1, 3))]
        if isinstance(self._witnesses[name], Text) and self._random.random() < 0.3:
            operator = self._random.choice(("stops_at", "stops_before", "STOPS_AT"))
            phrases = self._random.sample([".", "\n", "so", "ab", "!"], self._random.randint(1, 2))
            parts.append(f"{operator}({name}, {', '.join(map(repr, phrases))})")
        self._random.shuffle(parts)
        return " and ".join(parts)

    def _part(self, name: str, others: Sequence[str], depth: int) -> str:
        kind = self._random.random()
        if depth == 0 or kind < 0.6:
            return self._turned(self._atom(name, others), True)
        if kind < 0.75:
            return f"not ({self._turned(self._part(name, others, depth - 1), False)})"
        joined = " or " if kind < 0.9 else " and "
        parts = [self._part(name, others, depth - 1) for _ in range(2)]
        return f"({joined.join(parts)})"

    def _turned(self, part: str, wanted: bool) -> str:
        """The condition, or its opposite if the witnesses want that."""
        is_so = holds(part, self._witnesses) is wanted or self._random.random() < 0.1
        return part if is_so else f"not ({part})"

    def _atom(self, name: str, others: Sequence[str]) -> str:
        form = self._random.choice(self._forms(name, others))
        relation = self._random.choice(RELATIONS)
        return form.replace("{X}", name).replace("{r}", relation)

    def _forms(self, name: str, others: Sequence[str]) -> Sequence[str]:
        witness = self._witnesses[name]
        texts = [each for each in others if isinstance(self._witnesses[each], Text)]
        if isinstance(witness, bool):
            return _TRUTHS
        if isinstance(witness, int | Decimal):
            return [
                *self._of_number(witness),
                *(f"{{X}} {{r}} len({each})" for each in texts),
                *(f"{{X}} {{r}} {each}" for each in others if self._is_like(each, witness)),
            ]
        assert isinstance(witness, Text)
        pick = self._random.random()
        if texts and pick < 0.35:
            other = self._random.choice(texts)
            return [form.replace("{Y}", other) for form in _BETWEEN]
        return _OPAQUE if self._checks and pick > 0.93 else self._of_text(witness)

    def _is_like(self, name: str, witness: object) -> bool:
        return type(self._witnesses[name]) is type(witness)

    def _of_number(self, value: int | Decimal) -> list[str]:
        draw = self._random.randint
        forms = [
            f"{{X}} {{r}} {value + draw(-2, 3)}",
            f"{value - draw(0, 3)} <= {{X}} <= {value + draw(0, 3)}",
            f"{{X}} in [{value}, {value + 3}]",
            f"{{X}} not in [{value + 1}, {value - 1}]",
        ]
        if isinstance(value, int):
            forms += [f"{{X}} in range({value - 2}, {value + 4})", "{X} % 2 == 0"]
        return forms

    def _of_text(self, text: Text) -> list[str]:
        draw = self._random
        measure, count = draw.choice(
            (
                ("len({X})", len(text)),
                ("len(words({X}))", len(text.split())),
                ("len(sentences({X}))", text.count(".") + 1),
                ("len(tokens({X}))", text.num_tokens),
            )
        )
        bound = count + draw.randint(-2, 3)
        number = draw.randint(-10, 15)
        within = draw.choice(("in", "not in"))
        equal = draw.choice(("==", "!="))
        edge = draw.choice(("starts_with", "ends_with"))
        pieces = [self._piece(text) for _ in range(draw.randint(1, 2))]
        texts = [random_text(draw, 2) for _ in range(draw.randint(1, 4))]
        if draw.random() < 0.5:
            texts.append(str(text))
        return [
            f"{measure} {{r}} {bound}",
            f"{bound} {{r}} {measure}",
            f"{count - draw.randint(0, 3)} <= {measure} < {count + draw.randint(0, 3)}",
            f"{{X}} {within} {texts!r}",
            f"{{X}} {equal} {texts[-1]!r}",
            f"{pieces[0]!r} {within} {{X}}",
            f"{edge}({{X}}, {pieces!r})",
            f"{edge}({{X}}, {', '.join(map(repr, pieces))})",
            f"regex({{X}}, {draw.choice(_PATTERNS)!r})",
            "int({X})",
            f"int({{X}}) {{r}} {number}",
            f"float({{X}}) {{r}} {number / 4}",
        ]

    def _piece(self, text: str) -> str:
        start = self._random.randint(0, len(text))
        return text[start : start + self._random.randint(1, 3)] or self._random.choice(_WORDS)


@dataclass(frozen=True)
class Kind:
    """What may stand behind a hole's colon.

    written:  in a program; "" for any text
    declared: the same to Python
    pattern:  its texts, all of them
    read:     what a clause sees of a text
    draw:     one of its texts
    """

    written: str
    declared: object
    pattern: str
    read: Callable[[str], object]
    draw: Callable[[Random], str]


KINDS = (
    Kind("", None, r"(?s:.*)", Text, random_text),
    Kind("int", int, r"0|-?[1-9]\d*", int, lambda random: str(random.randint(-9, 14))),
    Kind(
        "float",
        float,
        r"-?(0|[1-9]\d*)(\.\d+)?",
        Decimal,
        lambda random: str(Decimal(random.randint(-12, 24)) / 4),
    ),
    Kind(
        "bool", bool, "True|False", "True".__eq__, lambda random: random.choice(("True", "False"))
    ),
    Kind(
        "['ab', 'so', '7']",
        ["ab", "so", "7"],
        "ab|so|7",
        Text,
        lambda random: random.choice(("ab", "so", "7")),
    ),
    Kind(
        "r'[a-z]{2,6}'",
        "[a-z]{2,6}",
        "[a-z]{2,6}",
        Text,
        lambda random: random.choice(("cat", "ab", "abcdef", "so")),
    ),
)
_FIXED = ("Q: ", "\\nA:", " is ", "\\n", " and ", ", so ", "The cat: ")


@dataclass(frozen=True)
class RandomProgram:
    """A program: its text, its holes' kinds by name, and all of its conditions."""

    text: str
    kinds: Mapping[str, Kind]
    clauses: tuple[str, ...]

    def broken(self, texts: Mapping[str, str]) -> list[str]:
        """What does not hold of these texts: kinds of holes, or else conditions."""
        wrong = [
            f"{name}: {kind.written}"
            for name, kind in self.kinds.items()
            if not re.fullmatch(kind.pattern, texts[name])
        ]
        if wrong:
            return wrong
        values = {name: kind.read(texts[name]) for name, kind in self.kinds.items()}
        return [clause for clause in self.clauses if not holds(clause, values)]


def random_program(random: Random) -> RandomProgram:
    """A program of one to three holes; a condition stands with its prompt or below all."""
    names = "ABC"[: random.randint(1, 3)]
    kinds = {name: random.choice((*[KINDS[0]] * 5, *KINDS[1:])) for name in names}
    drawn = Clauses(random, {name: kind.read(kind.draw(random)) for name, kind in kinds.items()})
    decoder = random.choice(("argmax(", "sample(temperature=1.3, seed=7, "))
    lines = [f"{decoder}max_tokens={random.randint(12, 30)})"]
    clauses: list[str] = []
    below: list[str] = []
    for name, kind in kinds.items():
        shown = f"{name}: {kind.written}" if kind.written else name
        line = f'    "{random.choice(_FIXED)}[{shown}]"'
        if random.random() < 0.85:
            is_free = random.random() < 0.2
            others = [each for each in names if each < name or (is_free and each != name)]
            clauses.append(drawn.about(name, others))
            if random.random() < 0.5 or any(each in clauses[-1] for each in others):
                below.append(f"({clauses[-1]})")
            else:
                line += f" where {clauses[-1]}"
        lines.append(line)
    if below:
        lines += ["where", "    " + " and\n    ".join(below)]
    return RandomProgram("\n".join(lines) + "\n", kinds, tuple(clauses))


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
