"""Programs in Python functions: what they see, where they stand."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from client.query.conditions.terms import Called, Compared, Opaque
from client.query.errors import BadProgram
from client.query.program import Program, Subquery
from client.query.reading.enclosing import Enclosing
from client.query.reading.program_errors import as_query_error
from client.query.reading.reader import read, read_function, read_template
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


async def one_line() -> None: "Say [X]"  # fmt: skip


def a_single_prompt(x: int) -> None:
    """Say {x}: [Y]"""


def with_dots() -> None:
    """argmax "Say [X]" from "m" """
    ...  # noqa: PIE790


def beside_the_quotes() -> None:
    """for i in range(2):
        "- {i} [X]"
    "Bye"
    """


def a_loop_beside_the_quotes() -> None:
    """for i in range(2):
    "- {i}"
    """


def prompts_beside_the_quotes() -> None:
    """ "Hi [X]" where len(X) < 3
    "Bye"
    """


def a_decoder_beside_the_quotes() -> None:
    """argmax
        "Hi [X]"
    from "m"
    """


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


def test_clauses_see_the_parameters_and_their_defaults() -> None:
    program = read_function(in_docstring)
    assert program.decoder is not None
    assert program.model is not None
    assert program.decoder(1).options == {"n": 2}
    assert program.decoder(1, n=7).options == {"n": 7}
    assert program.model(1, 4).value == "m4"


def test_a_body_is_a_program() -> None:
    record, returned = ran(read_function(in_body), "x")
    assert record == ["Docstring-like x", "- 0 ", "[Y]", "\n", "- 1 ", "[Y]", "\n"]
    assert returned == "helped"


@pytest.mark.parametrize(
    ("function", "arguments", "asks"),
    [
        (one_line, (), ["Say ", "[X]"]),
        (a_single_prompt, (3,), ["Say 3: ", "[Y]"]),
        (with_dots, (), ["Say ", "[X]"]),
        (beside_the_quotes, (), ["- 0 ", "[X]", "- 1 ", "[X]", "Bye"]),
        (a_loop_beside_the_quotes, (), ["- 0", "- 1"]),
        (prompts_beside_the_quotes, (), ["Hi ", "[X] where len(X) < 3", "Bye"]),
        (a_decoder_beside_the_quotes, (), ["Hi ", "[X]"]),
        (with_own_words, (), ["[X] where len(words(X)) < 3"]),
    ],
)
def test_a_function_holds_its_program(
    function: Callable[..., object], arguments: tuple[object, ...], asks: list[str]
) -> None:
    assert ran(read_function(function), *arguments)[0] == asks


def test_a_function_of_the_module_is_no_operator() -> None:
    (hole,) = holes_of(read_function(with_own_words))
    (condition,) = hole.conditions
    match condition():
        case Compared(left=Called(operator="len", arguments=(Opaque(function=function),))):
            assert function("abc") == ["a", "b", "c"]
        case term:
            raise AssertionError(term)


def test_a_body_sees_variables_around_it_as_they_are_then() -> None:
    size = 1

    async def inner() -> None:
        f"{size} [X]"  # noqa: B021

    program = read_function(inner)
    size = 2
    assert ran(program)[0] == ["2 ", "[X]"]


def test_a_docstring_sees_values_around_it_that_it_is_given() -> None:
    allowed = ["a", "b"]

    async def inner() -> None:
        """
        "[X]" where X in allowed
        """

    program = read_function(inner, around=Enclosing({"allowed": allowed, "unused": 3}))
    assert ran(program)[0] == ["[X] where X in ['a', 'b']"]


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


def test_a_function_without_a_file_has_its_docstring() -> None:
    made: dict[str, Any] = {}
    exec(
        textwrap.dedent(
            '''
            def f(x):
                r"""
                "Hi {x} [Y]\\n"
                """
            def g(x):
                return x
            '''
        ),
        made,
    )
    assert ran(read_function(made["f"]), 1)[0] == ["Hi 1 ", "[Y]", "\n"]
    with pytest.raises(BadProgram, match="the source of g cannot be read"):
        read_function(made["g"])


def test_only_functions_are_read() -> None:
    with pytest.raises(BadProgram, match="a query is a function"):
        read_function(print)


def test_a_template_takes_the_names_that_it_uses() -> None:
    program = read_template("Sum up {text}: [S] {len(other)} {[v for v in other]}", "len(S) < most")
    assert program.parameters == ("text", "other", "most")
    record, _ = ran(program, "x", [1], most=7)
    assert record == ["Sum up x: ", "[S] where len(S) < 7", " 1 [1]"]


def test_a_template_is_a_value_with_its_escapes_read() -> None:
    program = read_template('a\n"""\\n\r\n[X] {y}', namespace={"y": 3})
    assert program.parameters == ()
    assert ran(program)[0] == ['a\n"""\\n\r\n', "[X]", " 3"]


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


def test_an_error_that_never_was_in_the_program_has_no_place() -> None:
    error = as_query_error(ValueError("elsewhere"), read('"a"'))
    assert error.place is None
    assert str(error) == "ValueError: elsewhere"


def test_an_error_of_a_query_gets_its_place() -> None:
    program = read("1 if 2 else 3\nfail()", namespace={"fail": fail})
    with pytest.raises(BadProgram) as caught:
        ran(program)
    error = as_query_error(caught.value, program)
    assert error is caught.value
    assert str(error).split("\n") == ["<query>:2:1: by hand", "    fail()", "    ^^^^^^"]


def fail() -> None:
    raise BadProgram("by hand")


def test_a_traceback_shows_the_programs_lines() -> None:
    program = read('x = 3\n"{1 / 0}"')
    with pytest.raises(ZeroDivisionError) as caught:
        ran(program)
    assert '"{1 / 0}"' in str(caught.getrepr(style="short"))


def test_the_support_of_a_distribution_is_strings() -> None:
    for values in ("'ab'", "3", "[]", "[1]", "['']"):
        with pytest.raises(BadProgram, match="a distribution over X needs"):
            ran(read(f'"[X]" distribution X over {values}'))


def test_a_decorator_is_a_function() -> None:
    with pytest.raises(BadProgram, match="behind '@' comes a function") as caught:
        ran(read('f = 3\n"a [@f X]"'))
    assert "Given: 3" in caught.value.message
    assert caught.value.place is not None
    assert (caught.value.place.line, caught.value.place.column) == (2, 6)


@pytest.mark.parametrize("name", ["program", "decoder", "model"])
def test_a_program_may_use_any_name_that_stands_around_it(name: str) -> None:
    program = read(
        f'argmax(n={name})\n"{{{name}}}"\nfrom {name}\nwhere True', namespace={name: "mine"}
    )

    assert ran(program)[0] == ["mine"]
    assert program.decoder is not None
    assert program.decoder().options == {"n": "mine"}
    assert program.model is not None
    assert program.model().value == "mine"


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
