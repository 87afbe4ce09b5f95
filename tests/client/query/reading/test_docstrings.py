"""Docstrings: which are programs, and which are prompts."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from client.query.errors import BadProgram
from client.query.reading.reader import read_function
from tests.client.query.reading.recorder import ran

PROGRAMS = [
    ("import asyncio\nx = await asyncio.sleep(0, a)\nreturn [x]", [], [7]),
    ("return a + 5", [], 12),
    ("return 7 // 2", [], 3),
    ("return [a]", [], [7]),
    ('("Q {a}[X: int]") where X < 5', ["Q 7", "[X: int] where X < 5"], None),
    (
        'try: f"Q {a}[X]" where len(X) < 5\nexcept KeyError: pass',
        ["Q 7", "[X] where len(X) < 5"],
        None,
    ),
    ('match a:\n    case 7: "Q[X]" where len(X) < 5', ["Q", "[X] where len(X) < 5"], None),
    ('x = a; "Q {x}[X]" where len(X) < 5', ["Q 7", "[X] where len(X) < 5"], None),
    ('if a: f"Q[X]"', ["Q", "[X]"], None),
    ('x = str(a); "Q {x}"', ["Q 7"], None),
    ('("Q {a}")', ["Q 7"], None),
    ("if a:\n    return 1\nelse:\n    return 2", [], 1),
    ("import math\nmath.floor(2.5)", [], None),
    ("y = str(a)\ny", [], "7"),
    ("y = a + 1\ny", [], 8),
    ("y = [str(a)][0]\ny", [], "7"),
    ("y = {7: 8}[a]\ny", [], 8),
    ("def g(n):\n    return n + 1\nreturn g(a)", [], 8),
    ("for i in range(a): str(i)", [], None),
    ("y = str(a)  # as y[a] and z[0]\ny", [], "7"),
    ("y = str([a, 8][a - 7:])\ny", [], "[7, 8]"),
    ('y = {"k": a}\nstr(y)\ny', [], {"k": 7}),
    ("y = {str(a): [8]}[str(a)]\nstr(y)\ny", [], [8]),
    ("import asyncio\nx: int = await asyncio.sleep(0, a)\nx", [], 7),
]
# Some of these are Python by chance.
PROMPTS = [
    "Say hi to {a}: [X]",
    "Hello: [X]",
    "[X]",
    "[X][Y]",
    "{a}: [X]",
    "A, B",
    "Translate",
    "yes or no",
    "not bad",
    "global warming",
    "import duties",
    "return to sender: [X]",
    "return",
    "if so: why",
    "Q: {a}\nA: [X]",
    "answer: [X]",
    "Q = [A]",
    "Total = {str(a)}",
    "Total = sum(a)[X]",
    "Question: y = f(3)\nAnswer: [X]",
    "Note: str(a)",
    "def add(b, c):\n    [BODY]",
    "def add(b, c):\n    return [X]",
    "import numpy as np\n[CODE]",
    "for i in range(10):\n    [BODY]",
    'Tell me a "story": [X]',
    'How to say "yes":\n[X]',
    'Given that: "yes" or "no"\n[X]',
    'Translate\n("yes")',
    'Translate\n("yes[Y]") [X]',
    "# Title\n[X]",
    "- a\n- b\n[X]",
    "f(x)",
    # A hole in a comment or a string of what else is Python.
    "import os\nprint(os.sep)\n# This prints: [ANSWER]",
    "def add(b, c):\n    return b + c\nassert add(1, 2) == 3\n# In words: [ANSWER: int]",
    'def greet(b):\n    print("Hello")\ngreet("{a}")\n# Docstring for greet: [DOC]',
    "for i in range(3): print(i)\n# Output: [X]",
    'print("[ANSWER]")\ny = 3',
    # Holes with types, and values with formats.
    "Total = sum(a)[X: int]",
    "y = f(a)\nd[X: int]",
    "Total = {str(a):4}",
    "Note: y = {str(a):4}",
    # Words that Python knows.
    "Please: await [ANSWER]",
    "Wait: await x",
    "await [X]",
    "Wait: await [X: int]",
    # So deep that Python gives up.
    "Total: " + " + ".join(["1"] * 1500) + "\n[X]",
    " + ".join(["12"] * 1200) + " == [X]",
    "-" * 1000 + "[X]",
    "not " * 1500 + "a",
]
# What Python cannot read as a whole, so that it is told.
MISTAKES = [
    ('try: f"Q {a}[X: int]" where X < 5', "expected 'except' or 'finally' block"),
    ('("Q {a}[X: int]") where X <', "in the prompt's condition: invalid syntax"),
    ('match a:\n    case 3 4: "Q[X]"', "invalid syntax"),
]


@pytest.fixture
def function_of(tmp_path: Any) -> Callable[[str], Any]:
    """A function with this docstring, in a file of its own."""

    def made(docstring: str) -> Any:
        body = "\n".join(f"    {line}" for line in docstring.split("\n"))
        path = tmp_path / "asked.py"
        path.write_text(f"async def asked(a):\n    '''\n{body}\n    '''\n")
        defined: dict[str, Any] = {}
        exec(compile(path.read_text(), path, "exec"), defined)
        return defined["asked"]

    return made


@pytest.mark.parametrize(("docstring", "record", "returned"), PROGRAMS)
def test_a_docstring_that_does_something_is_a_program(
    function_of: Callable[[str], Any], docstring: str, record: list[str], returned: object
) -> None:
    assert ran(read_function(function_of(docstring)), 7) == (record, returned)


@pytest.mark.parametrize("docstring", PROMPTS)
def test_what_may_be_prose_is_a_prompt(function_of: Callable[[str], Any], docstring: str) -> None:
    record, _ = ran(read_function(function_of(docstring)), "abc")
    shown = re.sub(r"\{(a|str\(a\))(:4)?\}", "abc", docstring)

    assert "".join(record).split() == shown.split()


@pytest.mark.parametrize(("docstring", "message"), MISTAKES)
def test_a_mistake_in_a_program_is_told_and_not_sent_to_the_model(
    function_of: Callable[[str], Any], docstring: str, message: str
) -> None:
    with pytest.raises(BadProgram, match=message):
        read_function(function_of(docstring))


def without_source(code: str) -> Any:
    defined: dict[str, Any] = {}
    exec(code, defined)
    return defined["w"]


@pytest.mark.parametrize(
    ("body", "record"),
    [
        ("'Q {a}[X]'", ["Q 7", "[X]"]),
        ("'''argmax\n    \"Q {a}[X]\"'''\n    pass", ["Q 7", "[X]"]),
        ("'''\n    It's \"Q\" \\n{a}\n    '''", ['\n    It\'s "Q" \n7\n    ']),
    ],
)
@pytest.mark.parametrize("word", ["def", "async def"])
def test_a_docstring_alone_is_all_that_a_function_without_source_needs(
    word: str, body: str, record: list[str]
) -> None:
    assert ran(read_function(without_source(f"{word} w(a):\n    {body}")), 7)[0] == record


@pytest.mark.parametrize(
    "body",
    [
        "'Q {a}[X: int]'\n    return X",
        "'Q {a}[X: int]'\n    return 3",
        "'Q {a}[X: int]'\n    '[Y]'",
        "'Q {a}[X: int]'\n    for i in a: '[Y]'",
        "'''\n    \"Q {a}[X: int]\"\n    '''\n    return 3",
        "f'{a}[X]'",
        "pass",
    ],
)
@pytest.mark.parametrize("word", ["def", "async def"])
def test_code_without_source_is_told_to_be_so(word: str, body: str) -> None:
    with pytest.raises(BadProgram, match="the source of w cannot be read; put the program in its"):
        read_function(without_source(f"{word} w(a):\n    {body}"))
