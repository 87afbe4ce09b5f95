"""Queries as Python functions and as text."""

from pathlib import Path

import pytest

from client.query import (
    BadProgram,
    F,
    ProgramFailed,
    Result,
    Unsatisfiable,
    generate,
    query,
    read_file,
    run,
    run_file,
    run_sync,
    sample,
    score,
)
from client.sampling import Sampling
from tests.client.query.running.scripted_model import ScriptedModel, in_turn

SEEN = ScriptedModel(lambda prompt: [f"<{prompt}>"])


@query(model=SEEN)
async def shout(word: str) -> str:  # type: ignore[empty-body]
    """
    "{word}:[LOUD]"
    return LOUD.upper()
    """


@query(model=SEEN)
def whole(word, times=2):  # type: ignore[no-untyped-def]
    for _ in range(times):
        "{word}:[X]"


async def test_a_call_returns_what_the_program_returns() -> None:
    assert await shout("hi") == "<HI:>"


async def test_a_run_of_it_gives_the_whole_result() -> None:
    result = await shout.run("hi")

    assert result.prompt == "hi:<hi:>"
    assert result.value == "<HI:>"


def test_a_query_without_return_gives_its_result_when_called() -> None:
    result = whole("hi", times=1)

    assert isinstance(result, Result)
    assert result.prompt == "hi:<hi:>"


async def test_a_synchronous_call_within_an_event_loop_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="async def"):
        whole("hi")


async def test_another_decoder_or_model_makes_another_query() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])

    results = await shout.using(model=model, decoder=sample(2, seed=4)).run_all("hi")

    assert [result.value for result in results] == ["YES", "YES"]
    assert [call.sampling for call in model.generate_calls] == [
        Sampling(temperature=1.0, seed=4),
        Sampling(temperature=1.0, seed=5),
    ]
    assert await shout("hi") == "<HI:>"


async def test_a_query_within_a_query_asks_its_callers_model() -> None:
    model = ScriptedModel(lambda prompt: ["no"])

    @query
    async def inner(word: str) -> str:  # type: ignore[empty-body]
        """
        "{word}?[Y]"
        return Y
        """

    @query(model=model)
    async def outer(word: str) -> object:
        """
        import asyncio
        first, second = await asyncio.gather(inner(word), inner("b"))
        "{first}{second} [X: inner(word)]"
        return [first, second, X]
        """

    result = await outer.run("a")

    assert result.value == ["no", "no", "no"]
    assert result.prompt == "nono no"
    assert sorted(model.prompts) == ["a?", "b?", "nono a?"]
    assert len(result.requests) == 3


def test_a_template_takes_its_names_as_keywords_and_gives_its_hole() -> None:
    ask = F("Say {a}, {b}: [X]", "len(X) < 20", model=ScriptedModel(in_turn("word")))

    assert ask(a="x", b="y") == "word"


def test_a_template_with_several_holes_gives_them_by_name() -> None:
    ask = F("[X] and [Y]", model=ScriptedModel(in_turn("1", "2")))

    assert ask() == {"X": "1", "Y": "2"}


async def test_a_text_sees_the_variables_that_it_is_given() -> None:
    result = await run('"{n + 1}:[X]"\nreturn X * n', {"n": 2}, model=ScriptedModel(in_turn("ab")))

    assert result.prompt == "3:ab"
    assert result.value == "abab"


def test_a_decorator_is_called_on_the_value_and_may_ask_for_the_text() -> None:
    def both(value: int, text: str) -> tuple[int, str]:
        return value, text

    result = run_sync(
        '"[@both X: int] [@len Y]"', {"both": both}, model=ScriptedModel(in_turn("12", "abc"))
    )

    assert result.variables == {"X": (12, "12"), "Y": 3}
    assert result.prompt == "12 abc"


async def test_what_a_programs_own_code_raises_points_to_it() -> None:
    with pytest.raises(ProgramFailed) as caught:
        await run('"[X]"\nint(X)', model=ScriptedModel(in_turn("word")))

    assert str(caught.value).splitlines()[:2] == [
        "<query>:2:1: ValueError: invalid literal for int() with base 10: 'word'",
        "    int(X)",
    ]


async def test_what_a_nested_query_raises_points_into_that() -> None:
    @query
    async def inner() -> str:  # type: ignore[empty-body]
        """
        "Hm"
        return 1 / 0
        """

    with pytest.raises(ProgramFailed) as caught:
        await run('"[X: inner]"', {"inner": inner}, model=ScriptedModel(in_turn()))

    assert caught.value.source == inner.program.source


async def test_a_program_may_catch_its_own_errors_but_not_those_of_its_conditions() -> None:
    text = 'try:\n    "[X]" where X in [] and len(X) > n\nexcept Exception:\n    "caught"'

    with pytest.raises(Unsatisfiable):
        await run(text, {"n": 1}, model=ScriptedModel(in_turn("a")))


async def test_a_value_that_the_program_changes_is_whole_again_when_it_is_replayed() -> None:
    text = """
"X:[@list X]"
X.append("!")
" Y:[Y]" where Y in ["a", "b"] and fits(Y, Z)
" Z:[Z]" where Z in ["c"]
return X, Y
"""
    wishes = {"X": ["x"], "Y": ["a", "b"], "Z": ["c"]}
    model = ScriptedModel(lambda prompt: wishes[prompt[prompt.rindex(":") - 1]])

    result = await run(text, {"fits": lambda y, z: y == "b"}, model=model)

    assert result.value == (["x", "!"], "b")
    assert [request.hole for request in result.requests] == ["X", "Y", "Y", "Z"]


async def test_a_file_is_run_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "one.query"
    path.write_text('"Say [X]"')

    assert (await run_file(path, model=ScriptedModel(in_turn("hi")))).prompt == "Say hi"

    path.write_text('"Say [X" where')
    with pytest.raises(BadProgram, match=r"one\.query:1"):
        read_file(path)

    path.write_bytes('"Größe [X]"'.encode("latin-1"))
    with pytest.raises(BadProgram, match=r"one\.query is no UTF-8: .* position 3"):
        read_file(path)


async def test_every_call_of_the_model_is_written_to_the_trace_file(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"

    await run('"[X] [Y]"', model=ScriptedModel(in_turn("a", "b")), trace=path)

    assert len(path.read_text().splitlines()) == 2


def test_a_template_takes_lmqls_word_for_its_condition() -> None:
    model = ScriptedModel(lambda prompt: ["no", "a"])

    assert F("Say [X]", constraints="len(X) < 2", model=model)() == "a"
    with pytest.raises(TypeError, match="mean the same"):
        F("Say [X]", "len(X) < 2", constraints="len(X) < 2")


def test_a_call_without_an_argument_is_told_by_the_querys_name() -> None:
    with pytest.raises(ProgramFailed, match=r"TypeError: whole\(\) missing"):
        whole()
    with pytest.raises(ProgramFailed, match=r"whole\(\) takes from 1 to 2 .* but 3 were given"):
        whole("a", 2, 3)
    with pytest.raises(ProgramFailed, match=r"whole\(\) takes from 1 to 2 .* but 4 were given"):
        run_sync('"[X: whole(1, 2, 3, 4)]"', {"whole": whole}, model=SEEN)


def test_a_lambda_is_told_to_be_no_query() -> None:
    with pytest.raises(BadProgram, match="a lambda is no query"):
        query(lambda x: x)


async def test_one_call_takes_what_decoders_take() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])

    await generate("a", model=model, temperature=0.5, typical_p=0.9)

    assert model.generate_calls[0].sampling == Sampling(temperature=0.5, typical_p=0.9)


async def test_one_call_takes_no_unknown_option() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])

    with pytest.raises(TypeError, match="'max_tokns'"):
        await generate("a", model=model, max_tokns=3)  # type: ignore[call-arg]


async def test_the_values_of_a_score_are_no_single_text() -> None:
    with pytest.raises(ValueError, match="a list of texts"):
        await score("a", "yes", model=ScriptedModel(lambda prompt: ["yes"]))


@pytest.mark.parametrize("then", ["pass", '"too late[Y]"'])
async def test_a_program_cannot_stop_waiting_for_a_hole(then: str) -> None:
    text = (
        "import asyncio\n"
        "try:\n"
        "    async with asyncio.timeout(0):\n"
        '        "[X]"\n'
        "except TimeoutError:\n"
        f"    {then}"
    )

    with pytest.raises(BadProgram, match=r"<query>:4:10: .* stopped waiting for \[X\]"):
        await run(text, model=ScriptedModel(lambda prompt: ["yes"]))


async def test_what_a_condition_on_a_distribution_raises_points_to_it() -> None:
    with pytest.raises(ProgramFailed) as caught:
        await run('"[X]" distribution X in ["a"] where int(X) / 0 < 1')

    assert str(caught.value).splitlines()[0].startswith("<query>:1:")


async def test_a_nested_query_called_wrongly_points_to_where_it_is() -> None:
    with pytest.raises(ProgramFailed, match=r"<query>:1:2: TypeError: shout\(\) missing"):
        await run('"[X: shout]"', {"shout": shout}, model=ScriptedModel(lambda prompt: ["yes"]))


async def test_arithmetic_on_numbers_of_holes_is_part_of_the_request() -> None:
    model = ScriptedModel(lambda prompt: ["1", "3", "7"])

    result = await run('"[X: int] [Y: int]" where X + Y == 10 and Y - 2 > X', model=model)

    assert (result["X"], result["Y"]) == (3, 7)
    assert len(result.requests) == 4  # 1 needs a 9, which the model does not write


async def test_what_a_programs_python_asks_by_itself_is_booked_with_it(tmp_path: Path) -> None:
    text = 'said = await generate("a")\nbest = (await score("b", ["x", "yy"])).best()\n"{best}[X]"'
    model, trace = ScriptedModel(lambda prompt: ["yes"]), tmp_path / "calls.jsonl"

    result = await run(text, {"generate": generate, "score": score}, model=model, trace=trace)

    assert result.prompt == "xyes"
    assert [(row.kind, row.hole) for row in result.requests] == [
        ("generate", ""),
        ("score", ""),
        ("generate", "X"),
    ]
    assert len(trace.read_text().splitlines()) == 3


async def test_a_request_names_the_program_in_which_its_hole_stands() -> None:
    @query
    def inner() -> str:  # type: ignore[empty-body]
        """
        " ([Y])"
        return Y
        """

    result = await run(
        '"[X] [Z: inner]"', {"inner": inner}, model=ScriptedModel(lambda prompt: ["a"])
    )

    assert [(row.query, row.hole) for row in result.requests] == [("<query>", "X"), ("inner", "Y")]


async def test_a_decoder_may_be_given_by_its_name() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])

    await shout.using(model=model, decoder="sample").run("hi")

    assert model.generate_calls[0].sampling.temperature == 1.0
    with pytest.raises(ValueError, match="there is no decoder `samples`"):
        await shout.using(decoder="samples").run("hi")
    with pytest.raises(TypeError, match="decoder must be"):
        shout.using(decoder=sample)  # type: ignore[arg-type]


@pytest.mark.parametrize(("before", "asked"), [("a", ["q"]), ("b", "len(X) < 3"), ("c", ["r"])])
async def test_a_condition_may_depend_on_another(before: str, asked: object) -> None:
    text = (
        '"[X][Y]" where X in ["a", "b", "c"] and '
        '(Y == "q" if X == "a" else len(Y) < n if X == "b" else Y == "r")'
    )
    model = ScriptedModel(lambda prompt: [before, "q", "rr", "r"])

    await run(text, {"n": 3}, model=model)

    constraint = model.generate_calls[1].constraint
    assert constraint is not None
    assert constraint.value == asked


async def test_only_programs_are_run() -> None:
    with pytest.raises(TypeError, match=r"a program is its text.*Given: <query shout"):
        await run(shout)  # type: ignore[arg-type]


def test_a_program_in_a_docstring_with_code_behind_it_is_refused() -> None:
    def both():  # type: ignore[no-untyped-def]
        """
        "Say [X]" where len(X) < 3
        """
        return 3

    def quoted():  # type: ignore[no-untyped-def]
        """
        "Say this", said [X]
        """
        return 3

    with pytest.raises(BadProgram, match="a program in a docstring, and code behind it"):
        query(both)
    assert query(quoted).program.hole_names == {"X"}


def test_an_option_that_runs_do_not_have_is_told_with_those_they_have() -> None:
    told = "there is no option 'colour'; there are model, url, decoder, trace"
    with pytest.raises(TypeError, match=told):
        shout.using(colour="red")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=told):
        query(colour="red")  # type: ignore[call-overload]
