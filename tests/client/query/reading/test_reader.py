"""Programs in functions and docstrings: what each says, and what is wrong with it, at its place."""

import ast
import inspect
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.query.conditions.terms import Called, Compared, Opaque
from client.query.errors import BadProgram, Source
from client.query.program import Program, Subquery
from client.query.reading.program_errors import as_query_error
from client.query.reading.reader import read, read_function, read_template
from client.query.reading.text import SourceSpan, Text, Token, literal_of, tokens_of
from tests.client.query.reading.recorder import holes_of, ran

LIMIT = 3


def shout(value: str) -> str:
    return value.upper()


async def in_docstring(x: int, n: int = 2, *rest: int, loud: bool = True, **more: int) -> None:
    """lmql
    sample(n=n)
        "Hi {x} {rest} {loud} {more} {LIMIT}:\n[@shout Y]" where len(Y) < LIMIT
    from f"m{n}"
    where Y != "b"
    """


def in_body(x: str) -> Any:
    "Docstring-like {x}"
    for i in range(2):
        f"- {i} [Y]\n"

    def helper() -> str:
        "no [prompt]"
        return "helped"

    return helper()


def words(text: str) -> list[str]:
    return list(text)


def with_own_words() -> None:
    """
    "[X]" where len(words(X)) < LIMIT
    """


def test_a_docstring_is_a_program_with_the_functions_parameters() -> None:
    program = read_function(in_docstring)
    assert program.name == "in_docstring"
    assert program.parameters == ("x", "n", "rest", "loud", "more")
    record, returned = ran(program, 1, 4, 5, loud=False, extra=6)
    assert record == [
        "Hi 1 (5,) False {'extra': 6} 3:\n",
        "[@shout Y] where len(Y) < 3 where Y != 'b'",
    ]
    assert returned is None
    assert not program.returns


def test_a_body_is_a_program() -> None:
    record, returned = ran(read_function(in_body), "x")
    assert record == ["Docstring-like x", "- 0 ", "[Y]", "\n", "- 1 ", "[Y]", "\n"]
    assert returned == "helped"


def test_a_function_of_the_module_is_no_operator() -> None:
    (hole,) = holes_of(read_function(with_own_words))
    (condition,) = hole.conditions
    match condition():
        case Compared(left=Called(operator="len", arguments=(Opaque(function=function),))):
            assert function("abc") == ["a", "b", "c"]
        case term:
            raise AssertionError(term)


@dataclass(frozen=True)
class Held:
    """What `@query` makes, as far as reading knows it."""

    program: Program

    def __call__(self, *arguments: object) -> object:
        raise AssertionError("a query behind a colon is not called by the program")


def test_a_query_behind_a_colon_is_not_called_yet() -> None:
    held = Held(read('"inner [Y]"'))
    program = read('n = 3\n"[A: f] [B: f(n - 1, k=n)]"', namespace={"f": held})
    assert [hole.kind for hole in holes_of(program)] == [
        Subquery(held.program),
        Subquery(held.program, (2,), {"k": 3}),
    ]


def test_places_are_those_of_the_file() -> None:
    def broken() -> None:
        """
        "Hi [X"
        """

    with pytest.raises(BadProgram) as caught:
        read_function(broken)
    error = caught.value
    assert error.source is not None
    assert error.place is not None
    assert error.source.name == __file__
    line = error.source.first_line + error.place.line - 1
    shown = Path(__file__).read_text().split("\n")[line - 1]
    assert shown.strip() == '"Hi [X"'
    assert shown[error.place.column - 1] == "["


def test_a_function_without_a_file_is_told_to_have_none() -> None:
    made: dict[str, Any] = {}
    exec("def f(x): 'Hi {x} [Y]'", made)
    with pytest.raises(BadProgram, match="the source of f cannot be read: write it in a file"):
        read_function(made["f"])


def test_a_template_takes_the_names_that_it_uses() -> None:
    program = read_template("Sum up {text}: [S] {len(other)} {[v for v in other]}", "len(S) < most")
    assert program.parameters == ("text", "other", "most")
    record, _ = ran(program, "x", [1], most=7)
    assert record == ["Sum up x: ", "[S] where len(S) < 7", " 1 [1]"]


def test_an_error_of_the_programs_code_is_pointed_at() -> None:
    program = read('def f(x):\n    return 1 / x\n"ä {f(1)}"; "ü {f(0) + 2}"', name="<mine>")
    with pytest.raises(ZeroDivisionError) as caught:
        ran(program)
    error = as_query_error(caught.value, program)
    assert error.__cause__ is caught.value
    assert str(error).split("\n") == [
        "<mine>:2:12: ZeroDivisionError: division by zero",
        "        return 1 / x",
        "               ^^^^^",
    ]


def test_an_error_below_the_program_is_pointed_at_where_it_came_in() -> None:
    def failing() -> None:
        raise ValueError("no")

    program = read('x = 1\n\n"é" "{failing()}"', namespace={"failing": failing}, first_line=5)
    with pytest.raises(ValueError, match="no") as caught:
        ran(program)
    assert str(as_query_error(caught.value, program)).split("\n") == [
        "<query>:7:7: ValueError: no",
        '    "é" "{failing()}"',
        "          ^^^^^^^^^",
    ]


def test_the_support_of_a_distribution_is_strings() -> None:
    for values in ("'ab'", "3", "[]", "[1]", "['']"):
        with pytest.raises(BadProgram, match="a distribution over X needs"):
            ran(read(f'"[X]" distribution X over {values}'))


def test_classes_of_a_program_are_shown_by_their_own_names() -> None:
    program = read(
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class P:\n"
        "    'A point.'\n"
        "    n: int\n"
        '"{P(3)} {P.__doc__}"'
    )

    assert ran(program)[0] == ["P(n=3) A point."]


@pytest.mark.parametrize(
    ("program", "last"),
    [
        ('"[X]"', ["X"]),
        ('"Q: [X] and [Y]."', ["Y"]),
        ('"[X]"\nreturn X.upper()', ["X"]),
        ('"[X]"\nif X == "x":\n    "[Y]"', []),
        ('"[X]"\nif X == "y":\n    "[Y]"\n"[Z]"', ["Z"]),
        ('for i in range(2):\n    "[X]"', []),
        ('"[X]"\nasync def later(): pass\nawait later()', []),
        ('try:\n    "[X]"\nfinally:\n    "[Y]"', []),
    ],
)
def test_a_hole_is_last_where_no_await_can_follow(program: str, last: list[str]) -> None:
    assert [hole.name for hole in holes_of(read(program)) if hole.is_last] == last


PROGRAMS = [
    (
        'try: f"Q {a}[X]" where len(X) < 5\nexcept KeyError: pass',
        ["Q 7", "[X] where len(X) < 5"],
        None,
    ),
    ('match a:\n    case 7: "Q[X]" where len(X) < 5', ["Q", "[X] where len(X) < 5"], None),
    ('x = a\n"Q {x}[X]" where len(X) < 5', ["Q 7", "[X] where len(X) < 5"], None),
    ('if a: f"Q[X]"', ["Q", "[X]"], None),
    ('"Q {a}"', ["Q 7"], None),
]
# Some of these are Python by chance.
PROMPTS = [
    "Say hi to {a}: [X]",
    "[X]",
    "Q: {a}\nA: [X]",
    "Total = sum(a)[X: int]",
    "Question: y = f(3)\nAnswer: [X]",
    "def add(b, c):\n    return [X]",
    "for i in range(10):\n    [BODY]",
    'How to say "yes":\n[X]',
    'Given that: "yes" or "no"\n[X]',
    'Translate\n("yes[Y]") [X]',
    "# Title\n[X]",
    "def add(b, c):\n    return b + c\nassert add(1, 2) == 3\n# In words: [ANSWER: int]",
    'print("[ANSWER]")\ny = 3',
    "Wait: await [X: int]",
    "-" * 1000 + "[X]",
]
# What Python cannot read as a whole, so that it is told; and what asks for nothing.
MISTAKES = [
    ('try: f"Q {a}[X: int]" where X < 5', "expected 'except' or 'finally' block"),
    ('"Q {a}[X: int]" where X <', "in the prompt's condition: invalid syntax"),
    ('match a:\n    case 3 4: "Q[X]"', "invalid syntax"),
    ("return await ask(a)", "nor a prompt with a \\[HOLE\\]"),
    ("Translate {a}.", "nor a prompt with a \\[HOLE\\]"),
]


@pytest.fixture
def function_of(tmp_path: Any) -> Callable[[str], Any]:
    """The function `asked` of a source, in a file of its own."""

    def made(source: str) -> Any:
        path = tmp_path / "asked.py"
        path.write_text(source)
        defined: dict[str, Any] = {}
        exec(compile(source, path, "exec"), defined)
        return defined["asked"]

    return made


def documented(docstring: str) -> str:
    """A function with this docstring, on lines of its own."""
    body = "\n".join(f"    {line}" for line in docstring.split("\n"))
    return f"async def asked(a):\n    '''\n{body}\n    '''\n"


BESIDE_THE_QUOTES = [
    ('for i in range(2):\n        "- {i} [X]"\n    "Bye"', ["- 0 ", "[X]", "- 1 ", "[X]", "Bye"]),
    ('for i in range(2):\n    "- {i}"', ["- 0", "- 1"]),
    (' "Hi [X]" where len(X) < 3\n    "Bye"', ["Hi ", "[X] where len(X) < 3", "Bye"]),
    ('argmax\n        "Hi [X]"\n    from "m"', ["Hi ", "[X]"]),
]


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ('async def asked(a): "Say [X]"', ["Say ", "[X]"]),
        ('def asked(a):\n    """Say {a}: [Y]"""', ["Say 7: ", "[Y]"]),
        ("def asked(a):\n    '''argmax \"Say [X]\" from 'm' '''\n    ...", ["Say ", "[X]"]),
        *((f"def asked(a):\n    '''{said}\n    '''", asks) for said, asks in BESIDE_THE_QUOTES),
    ],
)
def test_a_function_holds_its_program(
    function_of: Callable[[str], Any], source: str, asks: list[str]
) -> None:
    assert ran(read_function(function_of(source)), 7)[0] == asks


@pytest.mark.parametrize(("docstring", "record", "returned"), PROGRAMS)
def test_a_docstring_whose_lines_are_prompts_is_a_program(
    function_of: Callable[[str], Any], docstring: str, record: list[str], returned: object
) -> None:
    assert ran(read_function(function_of(documented(docstring))), 7) == (record, returned)


@pytest.mark.parametrize("docstring", PROMPTS)
def test_what_may_be_prose_is_a_prompt(function_of: Callable[[str], Any], docstring: str) -> None:
    record, _ = ran(read_function(function_of(documented(docstring))), "abc")
    shown = re.sub(r"\{(a|str\(a\))(:4)?\}", "abc", docstring)

    assert "".join(record).split() == shown.split()


@pytest.mark.parametrize(("docstring", "message"), MISTAKES)
def test_a_mistake_in_a_program_is_told_and_not_sent_to_the_model(
    function_of: Callable[[str], Any], docstring: str, message: str
) -> None:
    with pytest.raises(BadProgram, match=message):
        read_function(function_of(documented(docstring)))


PIECES = [
    *"ab'\"\\ {}[]é\U0001f600",
    *(
        "\\n",
        "\\\n",
        "\\'",
        '\\"',
        "\\\\",
        "\\x41",
        "\\u00e9",
        "\\U0001F600",
        "\\101",
        "\\7",
        "\\q",
    ),
    *("\\N{BULLET}", "\\x4", "\\u12", "\\N{NO}", "\\U99999999", "\n"),
]
QUOTES = ["'", '"', "'''", '"""']
PREFIXES = ["", "r", "R", "u", "U"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from(QUOTES), st.data())
def test_a_literal_has_pythons_value(pieces: list[str], quotes: str, data: st.DataObject) -> None:
    prefix = data.draw(st.sampled_from(PREFIXES))
    literal = f"{prefix}{quotes}{''.join(pieces)}{quotes}"
    text = Text(Source(literal, "<test>"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = ast.literal_eval(literal)
    except SyntaxError:
        with pytest.raises(BadProgram):
            literal_of(text, one_string(text))
        return
    assert literal_of(text, one_string(text)).code == expected


def one_string(text: Text) -> tuple[Token, ...]:
    """The tokens of a text that is one literal, or several. Raises BadProgram for any other."""
    tokens = tuple(tokens_of(text, SourceSpan(0, len(text.text))))
    if not all(re.match(r"[rRuU]?['\"]", token.text) for token in tokens):
        raise BadProgram("more than literals")
    return tokens


@settings(deadline=None)
@given(st.text(alphabet="aß\U0001f600\n", max_size=12), st.data())
def test_lines_bytes_and_offsets_are_one(content: str, data: st.DataObject) -> None:
    text = Text(Source(content, "<test>"))
    offset = data.draw(st.integers(0, len(content)))
    assert text.offset_of_bytes(*text.byte_position(offset)) == offset
    assert text.offset(text.line_of(offset), text.column_of(offset)) == offset


# A program, what is said, and the text that the caret is under.
HOLES = [
    ('"Hi [X"', "'[' opens a hole that is never closed; write '[['", "["),
    ('"Hi [1X]"', "'1X' is no name for a hole; write '[[' and ']]'", "[1X]"),
    ('"[for]"', "'for' is a word of Python's", "[for]"),
    ('"[X: ]"', "behind 'X:' comes a type", ":"),
    ('"[X: 1 +]"', "the type of X: invalid syntax", "]"),
    ('"[@ X]"', "behind '@' comes the name of a function", "@"),
    ('"[print(X)]"', "'print(X)' is no name for a hole", "[print(X)]"),
]
WRONG_PROMPTS = [
    ('"{x"', "'{' opens a value that is recalled and never closes; write '{{'", "{"),
    ('"{}"', "an expression is missing between '{' and '}'", "{}"),
    ('"a } b"', "a single '}'; write '}}'", "}"),
    ('"[X] {X +}"', "in braces: invalid syntax", "}"),
    ('"{x!q}"', "in braces: f-string: invalid conversion", None),
    ("\u201c[X]\u201d", "means nothing here", "\u201c"),
    ('def f():\n   x = 1\n   "Q: [X]"', "a prompt in a function", '"Q: [X]"'),
    ('"{:boss}"', "'{:boss}' is no role; known are {:system}", "{:boss}"),
    (r'"\x4"', "is not complete, or no character", "\\"),
    (r'"\N{NO SUCH}"', "is not complete, or no character", "\\"),
    ('"[X]\n', "a string that is not closed on its line", '"'),
    ('"""[X]\n', "a string in three quotes that is never closed", '"'),
    ('def f():\n   "[X]" where len(X) < 3', "a prompt in a function", '"[X]" where len(X) < 3'),
    ('x = 1\n"Q: [X]" + x\n"b"', "a prompt is strings alone", '"Q: [X]" + x'),
    ('"a [X]" if y else "b [X]"', "a prompt is strings alone", '"a [X]" if y else "b [X]"'),
    ('"a [X] %s".format(y)', "a prompt is strings alone", '"a [X] %s".format(y)'),
    ('"a [X]", "b"', "a prompt is strings alone", '"a [X]", "b"'),
]
CLAUSES = [
    (
        'argmax\n  "[X]" // it\n  "b"',
        "a prompt is strings alone",
        '"[X]" // it',
    ),
    ('"[X]"\nwhere len(X) < 3\n"[Y]"', "behind the program's clauses comes no further", '"[Y]"'),
    ('"[X]"\nwhere len(X) < 3\nprint(X)', "behind the program's clauses comes no", "print"),
    ('argmax\n  "[X]"\nwhere', "behind `where` comes a condition", "where"),
    ('argmax\n  "[X]"\nfrom\nwhere X', "behind `from` comes a model", "from"),
    ('argmax "x" from "m"\n"more"', "behind the program's clauses comes no further", '"more"'),
    ('argmax\n  "x"\nsample\n  "y"', "a second decoder clause, `sample`", "sample"),
    ('"a"\nargmax\n  "x"', "a prompt in front of the decoder clause", '"a"'),
    ('argmax(n=)\n  "x"', "in the decoder clause: invalid syntax", ")"),
    ("argmax(n=1, n=2)\n 'x'", "keyword argument repeated", "n"),
    ("for i in x:\n    '[X]'\n    where X", "stands no further right than its first", "where"),
    ('"[X]" distribution', "behind `distribution` comes the name of a hole", "distribution"),
    ('"[X]" distribution X', "behind `distribution X` comes `over` and its values", "X"),
    ('"[X]" distribution X over', "behind `over` comes a list of the values of X", "over"),
    ('argmax\n "[TH]"\ndistribute T over y', "which is no hole of the program", "T"),
    ('"[Y]"\n"[X]" distribution Y in z', "Y, which is no hole of its prompt", "Y"),
]
CONDITIONS = [
    ('"[X]" where len(X) <', "in the prompt's condition: invalid syntax", ""),
    ('"[X]" where !(X == "a")', "the character '!' means nothing here", "!"),
    ('"[X]" where len(X) < 3, len(X) > 1', "joined by `and`, not by a comma", None),
    ('"[X]" where X == "a" or "b"', "says nothing that could be true or false", '"b"'),
    ('"[X]" where X where X', "a second `where` of a prompt", "where"),
    ('"hi" where 3 < 4', "a `where` behind a prompt without holes", "3 < 4"),
    ('"[X]" where regex(X, p=3)', "`regex` takes plain arguments alone", "regex(X, p=3)"),
    ('argmax\n "[X]"\nwhere\n  X in [1,\n 2] 3', "in the `where` clause: invalid syntax", None),
]
PYTHON = [
    ("x = = 3", "invalid syntax", "="),
    ('if True\n  "a"', "expected ':'", ""),
    ("(1, 2", "'(' is never closed", "("),
    ("x = [1, 2)", "')' cannot close '['", ")"),
    ("yield 3", "`yield` cannot stand in a program", "yield 3"),
    ('"a"\n  "b"', "unexpected indent", None),
    (" x = 1\nelse:\n  y", "stands further left than the program begins", None),
    ("x = '\0'", "the character '\\x00' cannot stand in a program", "\0"),
]


@pytest.mark.parametrize(
    ("text", "message", "marked"), [*HOLES, *WRONG_PROMPTS, *CLAUSES, *CONDITIONS, *PYTHON]
)
def test_what_is_wrong_is_said_at_its_place(text: str, message: str, marked: str | None) -> None:
    with pytest.raises(BadProgram) as caught:
        read(text)
    error = caught.value
    assert message in error.message
    assert error.place is not None
    assert error.source is not None
    line = text.split("\n")[error.place.line - 1]
    if marked is not None and error.place.end_line == error.place.line:
        assert line[error.place.column - 1 : error.place.end_column - 1] == marked


def test_an_error_shows_its_line_with_a_caret() -> None:
    with pytest.raises(BadProgram) as caught:
        read('x = "ß"\nif x: "größe {x} [1]"', name="a.query", first_line=10)
    shown = [
        "a.query:11:18: '1' is no name for a hole; write '[[' and ']]' for the signs themselves",
        '    if x: "größe {x} [1]"',
        "                     ^^^",
    ]
    assert str(caught.value).split("\n") == shown


def test_a_place_is_found_behind_escapes_and_joined_strings() -> None:
    with pytest.raises(BadProgram) as caught:
        read("\"a\\n\\u00e9\" 'b\\t [1]'")
    place = caught.value.place
    assert place is not None
    assert (place.column, place.end_column) == (18, 21)


def test_a_hole_cannot_have_the_name_of_a_parameter() -> None:
    with pytest.raises(BadProgram, match="the hole X has the name of a parameter"):
        read("[X]".join('""'), parameters=inspect.signature(lambda X: X))


@pytest.mark.parametrize("deep", ["(" * 300 + ")" * 300, "1" + "+1" * 5000, "-" * 100_000 + "1"])
def test_code_nested_too_deeply_is_refused(deep: str) -> None:
    with pytest.raises(BadProgram):
        read(f'"{{{deep}}}"')
