"""Programs at random ask for what they were made to ask; damaged ones are refused or read.

So do those of the paper and of LMQL's users.
"""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from client.query.errors import BadProgram
from client.query.program import DecoderClause
from client.query.reading.reader import read, read_template
from tests.client.query.reading.recorder import ran

PROGRAMS = Path(__file__).parent / "programs"


def cases() -> list[Any]:
    return [
        pytest.param(case, id=case["name"])
        for path in sorted(PROGRAMS.glob("*.yaml"))
        for case in yaml.safe_load(path.read_text())
    ]


def shown(clause: DecoderClause) -> str:
    arguments = [*map(repr, clause.arguments)]
    arguments += [f"{name}={value!r}" for name, value in clause.options.items()]
    return f"{clause.name}({', '.join(arguments)})"


@pytest.mark.parametrize("case", cases())
def test_a_program_says_and_asks_what_it_is_written_to(case: dict[str, Any]) -> None:
    program = read(case["program"], namespace=case.get("namespace"))
    record, returned = ran(program, answers=case.get("answers"))
    assert record == case["asks"]
    assert returned == case.get("returns")
    assert program.returns == ("returns" in case)
    assert (program.decoder and shown(program.decoder())) == case.get("decoder")
    assert (program.model and program.model().value) == case.get("model")


NUM_DAMAGED = 100


@dataclass
class Writer:
    """Owner of a program that grows, and of what it is going to ask for."""

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def write(self, depth: int, margin: str, runs: bool) -> None:
        """A block of statements; `runs`: it is reached."""
        for _ in range(self.rng.randint(1, 3)):
            choices = [self.prompt, self.prompt, self.joined, self.assignment]
            if depth < 3:
                choices += [self.branch, self.loop, self.attempt]
            self.rng.choice(choices)(depth, margin, runs)

    def prompt(self, depth: int, margin: str, runs: bool) -> None:
        literal, asked = self.literal()
        clause, shown = self.clause()
        if not any(entry.startswith("\0") for entry in asked):
            clause = ""
        self.add(f"{margin}{literal}{clause}", asked, shown if clause else "", runs)

    def joined(self, depth: int, margin: str, runs: bool) -> None:
        first, asked = self.literal()
        second, more = self.literal()
        together = merged([*asked, *more])
        self.add(f"{margin}{first} {second}", together, "", runs)

    def assignment(self, depth: int, margin: str, runs: bool) -> None:
        self.lines.append(f'{margin}value = ["[no prompt]", {self.rng.randint(0, 9)}]')

    def branch(self, depth: int, margin: str, runs: bool) -> None:
        taken = self.rng.random() < 0.5
        self.lines.append(f"{margin}if {taken}:")
        self.write(depth + 1, margin + "  ", runs and taken)
        self.lines.append(f"{margin}else:")
        self.write(depth + 1, margin + "    ", runs and not taken)

    def loop(self, depth: int, margin: str, runs: bool) -> None:
        times = self.rng.randint(0, 2)
        self.lines.append(f"{margin}for i in range({times}):")
        begin = len(self.asked)
        self.write(depth + 1, margin + "\t", runs)
        once = self.asked[begin:]
        self.asked[begin:] = once * times

    def attempt(self, depth: int, margin: str, runs: bool) -> None:
        self.lines.append(f"{margin}try:")
        self.write(depth + 1, margin + " ", runs)
        self.lines += [f"{margin} raise ValueError", f"{margin}except ValueError:"]
        self.write(depth + 1, margin + " ", runs)

    def add(self, line: str, asked: list[str], shown: str, runs: bool) -> None:
        self.lines.append(line)
        if runs:
            marked = (f"[{entry[1:]}]{shown}" if entry[:1] == "\0" else entry for entry in asked)
            self.asked += marked

    def literal(self) -> tuple[str, list[str]]:
        """A string literal, and what it asks for; a hole begins with a null."""
        pieces, asked = [], []
        for _ in range(self.rng.randint(1, 4)):
            piece, entry = self.rng.choice(PIECES)
            pieces.append(piece)
            asked.append(entry)
        quotes = self.rng.choice(["'", '"', "'''", '"""'])
        prefix = self.rng.choice(["", "", "u", "f"])
        return f"{prefix}{quotes}{''.join(pieces)}{quotes}", merged(asked)

    def clause(self) -> tuple[str, str]:
        return self.rng.choice(CLAUSES)


PIECES = [
    ("words ", "words "),
    ("\\n", "\n"),
    ("[[not a hole]]", "[not a hole]"),
    ("{{}}", "{}"),
    ("{1 + 1}", "2"),
    ("{[3][0]:>3}", "  3"),
    ("ß\\u00e9", "ßé"),
    ("[X]", "\0X"),
    ("[ LONG_NAME ]", "\0LONG_NAME"),
    ("[Y: int]", "\0Y: int"),
    ("{:user}", "{:user}"),
]
CLAUSES = [
    ("", ""),
    (" where 1 < 2", " where True"),
    (" where (1 <\n 2) # and so on", " where True"),
    ("; pass", ""),
]


def merged(asked: list[str]) -> list[str]:
    """Fixed text side by side is said at once."""
    made: list[str] = []
    for entry in asked:
        is_words = entry[:1] != "\0" and entry != "{:user}"
        if is_words and made and made[-1][:1] != "\0" and made[-1] != "{:user}":
            made[-1] += entry
        else:
            made.append(entry)
    return made


@given(st.integers(0, 2**32))
def test_a_random_program_asks_for_what_it_was_made_to(seed: int) -> None:
    writer = Writer(random.Random(seed))
    writer.write(0, "", True)
    assert ran(read("\n".join(writer.lines)))[0] == writer.asked


def damaged(text: str, rng: random.Random, corpus: list[str]) -> str:
    for _ in range(rng.randint(1, 4)):
        here = rng.randrange(len(text) + 1)
        other = rng.choice(corpus)
        changes = (
            text[:here] + text[here + rng.randint(1, 12) :],
            text[: here + rng.randint(1, 20)] + text[here:],
            text[:here] + rng.choice(string.printable + "\0é\ud800") + text[here + 1 :],
            text[:here] + rng.choice(INSERTIONS) + text[here:],
            text[:here] + other[rng.randrange(len(other) + 1) :],
        )
        text = rng.choice(changes)
    return text


INSERTIONS = [
    *("where ", "from ", "distribute ", "distribution X in ", "argmax ", "\nsample\n", "lmql\n"),
    *('"', "'", '"""', "[", "]", "{", "}", "(", ")", "[X]", "{x}", "{:user}", "[@f X]", "[X: "),
    *("\n", "\n  ", "\t", "\\", "\\\n", "\r", "\f", "\v", "\x1c", "#", ";", ":", "=", ",", "..."),
    *("f", "rb", "lambda:", "await ", "yield ", "return ", "global X\n", "nonlocal X\n", "del X\n"),
    *("import *", "class A:\n", "def f():\n", "async ", "match X:\n case ", "\u2028", "ﬁ", "٣"),
    *("9" * 5000, "(" * 250, "-" * 3000, "{" * 99, "[" * 99, "x" * 3000, "not " * 500, "{x:" * 300),
]


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, 20))]
)
def test_a_damaged_program_is_read_or_refused(part: int) -> None:
    corpus = [
        case["program"]
        for path in sorted(PROGRAMS.glob("*.yaml"))
        for case in yaml.safe_load(path.read_text())
    ]
    rng = random.Random(part)
    readers: list[Callable[[str], object]] = [read, read, read, read_template]
    texts = [damaged(rng.choice(corpus), rng, corpus) for _ in range(NUM_DAMAGED)]
    refusals = [refusal(rng.choice(readers), text) for text in texts]
    refused = [error for error in refusals if error is not None]
    assert all(error.place is not None and str(error) for error in refused)
    assert NUM_DAMAGED // 10 < len(refused) < NUM_DAMAGED - NUM_DAMAGED // 10


def refusal(reader: Callable[[str], object], text: str) -> BadProgram | None:
    try:
        reader(text)
    except BadProgram as error:
        return error
    return None
