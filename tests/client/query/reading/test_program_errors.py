"""What goes wrong as users see it: what they are told, and what they see of its way."""

import copy
import pickle
import re
import traceback
from pathlib import Path

import pytest

import client
from client.errors import ConstraintRefused, ServerFailed, TandemError
from client.query import (
    BadCondition,
    BadProgram,
    ProgramFailed,
    Unsatisfiable,
    query,
    run,
    run_sync,
)
from client.query.reading.reader import read
from tests.client.query.running.models import Failing, ScriptedModel, in_turn, under_caret

# A program, what is said of it, and the text that the caret is under.
NAMES = [
    ('"[ANSWER]"\n"again {ANSWR}"', "'ANSWR' is not defined; did you mean `ANSWER`?", "ANSWR"),
    ('"[X: integer]"', "'integer' is not defined; did you mean `int`?", "integer"),
    ('"[X]" where len(Y) < 3', "'Y' is not defined; holes of this program: X", "Y"),
    ('"[X]" where x != "a"', "'x' is not defined; did you mean `X`?", "x"),
    ('print(X)\n"[X]"', "the hole [X] is not filled yet", "X"),
    ('"{X}[X]"', "the hole [X] is not filled yet", "X"),
    ('x = "Q: [X]"\nreturn X', "the string with [X] is no prompt", "X"),
    ('argmax\n "[X]"\nfrom gpt2', "the name of a model is a string", "gpt2"),
]
CALLS = [
    ('"[X]" where stopsat(X, ".")', "did you mean `stops_at`?", 'stopsat(X, ".")'),
    ('"[X]" where len(word(X)) < 3', "did you mean `words`?", "word(X)"),
    ('"[X]" where words(X)[0] == "a"', "`words` is an operator of conditions", "words(X)[0]"),
    ("'Give {\"name\": 1} [X]'", "write '{{' and '}}' for the signs", '{"name": 1}'),
    ('def f(): pass\n"[X: f(1)]"', "TypeError: f() takes 0 positional arguments", "f(1)"),
    ('class C:\n  def f(): pass\n"[X]"\nC().f()', "TypeError: C.f() takes 0", "C().f()"),
    ('async def f():\n  pass\n"{f()}[X]"', "not awaited; write {await ...}", "{f()}"),
]


@pytest.mark.parametrize(("text", "message", "marked"), [*NAMES, *CALLS])
async def test_a_name_that_nobody_knows_brings_what_may_have_been_meant(
    text: str, message: str, marked: str
) -> None:
    with pytest.raises(ProgramFailed) as caught:
        await run(text, model=ScriptedModel(lambda prompt: ["a"]))

    assert message in caught.value.message
    assert under_caret(caught.value) == marked


async def test_a_method_that_no_text_has_is_told_with_the_one_that_is_meant() -> None:
    message = r"no attribute 'starts_with'.*did you mean `startswith"
    with pytest.raises(ProgramFailed, match=message):
        await run('"[X]" where X.starts_with("a")', model=ScriptedModel(lambda prompt: ["a"]))


async def test_what_a_helper_raises_is_told_with_where_that_was() -> None:
    def inner() -> None:
        raise KeyError("no")

    def helper() -> None:
        inner()

    with pytest.raises(ProgramFailed) as caught:
        await run('"a"\nhelper()', {"helper": helper}, model=ScriptedModel(list))

    assert under_caret(caught.value) == "helper()"
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"raised in inner \(.*test_program_errors\.py:\d+\)", note)


async def test_what_a_library_raises_is_the_programs_fault_alone() -> None:
    with pytest.raises(ProgramFailed) as caught:
        await run('import json\njson.loads("{")', model=ScriptedModel(list))

    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(
    ("line", "caret"),
    [
        ('\t"é[X]" where Y == "a"', "\t             ^"),
        ('"狐🦊e\u0301[X]" where Y == "a"', "                 ^"),
        ('"a[狐]" where Y == "a"', "              ^"),
    ],
)
async def test_a_caret_stands_below_what_it_is_about(line: str, caret: str) -> None:
    with pytest.raises(ProgramFailed) as caught:
        await run(f"if True:\n{line}" if line[0] == "\t" else line, model=ScriptedModel(list))

    assert str(caught.value).split("\n")[1:] == [f"    {line}", f"    {caret}"]


async def test_an_option_that_a_decoder_lacks_brings_the_one_that_was_meant() -> None:
    with pytest.raises(BadProgram, match="no option `temprature`; did you mean `temperature`"):
        await run('argmax(temprature=1)\n "[X]"', model=ScriptedModel(lambda prompt: ["a"]))


async def test_a_condition_that_means_nothing_brings_one_that_does() -> None:
    with pytest.raises(BadCondition, match=r"`X\.isdigit` is a method, which has to be called"):
        await run('"[X]" where X.isdigit', model=ScriptedModel(lambda prompt: ["a"]))


async def test_what_editors_put_in_front_of_a_file_is_no_part_of_its_program() -> None:
    model = ScriptedModel(lambda prompt: ["a"])

    assert (await run('\ufeff"Q: [X]"', model=model)).prompt == "Q: a"


async def test_a_model_that_is_none_is_told_where_it_stands() -> None:
    with pytest.raises(BadProgram, match=r"a model is its name, .* Given: 3") as caught:
        await run('argmax\n "[X]"\nfrom 3')

    assert under_caret(caught.value) == "3"
    with pytest.raises(BadProgram, match="a model is its name"):
        await run('"[X]"', model=ScriptedModel)  # type: ignore[arg-type]


async def test_a_condition_that_asks_of_no_hole_is_told_with_what_it_is() -> None:
    with pytest.raises(Unsatisfiable, match=r"a condition of `X` that asks of no hole is None"):
        await run('"[X]" where print("hi")', model=ScriptedModel(lambda prompt: ["a"]))


@pytest.mark.parametrize(
    ("condition", "marked"),
    [
        ("is_short(X)", "is_short(X)"),
        ("len(X) < 3 or not is_short(X)", "is_short(X)"),
        ('X in ["a", "long"] and is_short(X)', "is_short(X)"),
        ('len(X) < 9 and is_short("it")', 'is_short("it")'),
        ("len(X) < is_short(X)", "is_short(X)"),
        ('X == is_short("it")', 'X == is_short("it")'),
        ('is_short(X) distribution X in ["long", "a"]', "is_short(X)"),
    ],
)
@pytest.mark.filterwarnings("error")
async def test_an_async_function_in_a_condition_is_told_and_not_taken_for_true(
    condition: str, marked: str
) -> None:
    async def is_short(text: str) -> bool:
        return len(text) < 3

    model = ScriptedModel(lambda prompt: ["long"])
    with pytest.raises(BadCondition, match="async function, which conditions cannot") as caught:
        await run(f'"[X]" where {condition}', {"is_short": is_short}, model=model)

    assert under_caret(caught.value) == marked


CLIENT = Path(client.__file__).parent


def frames(error: BaseException) -> list[str]:
    """The functions of the client in its traceback, and in those of all that it comes from."""
    named = []
    for each in (error, error.__cause__, error.__context__):
        found = traceback.extract_tb(each.__traceback__) if each else []
        named += [frame.name for frame in found if frame.filename.startswith(str(CLIENT))]
    return named


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ('"[X', BadProgram),
        ('"[X]" where len(X) < 0', Unsatisfiable),
        ('"{1 / 0}"', ProgramFailed),
        ('"[X]"', ServerFailed),
    ],
)
def test_an_error_shows_the_door_alone(program: str, kind: type[TandemError]) -> None:
    with pytest.raises(kind) as caught:
        run_sync(program, model=Failing())

    assert frames(caught.value) == ["run_sync"]


def test_a_function_that_is_no_program_shows_its_decorator() -> None:
    with pytest.raises(BadProgram) as caught:

        @query
        def broken() -> None:
            '"[X'

    assert frames(caught.value) == ["__call__"]


def test_a_cause_shows_the_programs_own_lines() -> None:
    def helper() -> None:
        raise KeyError("no")

    with pytest.raises(ProgramFailed) as caught:
        run_sync('"a"\nhelper()', {"helper": helper}, model=ScriptedModel(in_turn()))

    cause = caught.value.__cause__
    assert cause is not None
    shown = traceback.extract_tb(cause.__traceback__)
    assert (shown[0].filename, shown[0].lineno) == ("<query>", 2)
    assert shown[1].line == 'raise KeyError("no")'


async def test_results_and_errors_go_to_other_processes() -> None:
    text = '"[X]" distribution X in ["a", "bb"]\nreturn {"x": X}'
    result = await run(text, model=ScriptedModel(lambda prompt: ["a"]))
    refused = ConstraintRefused("no", "constraint_error", "constraint", {"reason": "broken"})
    with pytest.raises(BadProgram) as caught:
        read("argmax\n [X")

    assert pickle.loads(pickle.dumps(result)) == result
    assert copy.deepcopy(result) == result
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(result)).variables["X"] = "b"
    for error in (refused, ServerFailed("it broke", "step_failed"), caught.value):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        assert again.__dict__ == error.__dict__
