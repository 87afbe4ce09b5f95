"""`launcher query` as it is typed, against a server that makes letters; and how queries look."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from client.calls import Constraint, Usage
from client.cli.query import LiveView, Palette, described, finished, outcome
from client.query import Choice, Result, Span, State
from launcher import app
from tests.client.cli.on_terminal import LAUNCHER, on_a_terminal
from tests.client.lmtp.peer import USAGE, Peer, performing, performing_aside

ARGV = (*LAUNCHER, "query")
TWO_HOLES = 'argmax\n    "A [X] and {n} [Y]\\n"\nfrom "small"\nwhere len(X) < 4\n'


async def letters(peer: Peer) -> None:
    """Fills each hole with "ab"; scores the n-th value with -n."""
    await peer.greet()
    while True:
        kind, body = await peer.read()
        stream_id = body["stream_id"]
        if kind == "GENERATE":
            await peer.letters(stream_id, 0, 2)
            await peer.done(stream_id, "ab", "eos", constraint_satisfied=True)
        elif kind == "SCORE":
            scores = [
                {"tokens": [1], "logprobs": [-index]} for index, _ in enumerate(body["scored"], 1)
            ]
            await peer.say("SCORES", {"stream_id": stream_id, "scores": scores, "usage": USAGE})


def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, ["query", *args], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "two.tandem"
    path.write_text(TWO_HOLES)
    return str(path)


def test_a_program_is_run_and_its_results_are_plain_text(program: str) -> None:
    with performing_aside(letters) as scene:
        code, out, err = run(program, "--url", scene.url, "--set", "n=2")
        sent = [body for kind, body in scene.peers[0].received if kind == "GENERATE"]
    assert (code, out) == (0, "A ab and 2 ab\n\n\nX = 'ab'\nY = 'ab'\n")
    assert err.startswith("[requests: 2, in ")
    assert "\x1b" not in out + err
    assert [body["text"] for body in sent] == ["A ", "A ab and 2 "]
    assert [body["model"] for body in sent] == ["small", "small"]
    assert [body.get("constraint") for body in sent] == [
        {"type": "where", "value": "len(X) < 4"},
        None,
    ]


def test_a_model_that_is_asked_for_goes_before_the_programs(program: str) -> None:
    with performing_aside(letters) as scene:
        run(program, "--url", scene.url, "--set", "n=2", "--model", "large")
        assert scene.peers[0].received[1][1]["model"] == "large"


def test_a_program_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_a_query.py").write_text("def shout(text):\n    return text.upper()\n")
    path = tmp_path / "a.query"
    path.write_text('from beside_a_query import shout\n"A [X]"\nreturn shout(X)\n')
    before = list(sys.path)

    with performing_aside(letters) as scene:
        code, out, _ = run(str(path), "--url", scene.url)

    assert (code, out) == (0, "A ab\n\nX = 'ab'\nreturned 'AB'\n")
    assert sys.path == before


def test_json_is_an_object_for_each_result() -> None:
    text = (
        'sample(n=2, temperature=1)\n    print("besides")\n    "A [X] is [Y]"\n    return X\n'
        'distribute Y over ["good", "bad"]'
    )
    with performing_aside(letters) as scene:
        code, out, err = run("-", "--url", scene.url, "--json", stdin=text)
    assert code == 0
    results = [json.loads(line) for line in out.splitlines()]
    assert len(results) == 2
    assert "besides" in err
    result = results[1]
    assert result["prompt"] == "A ab is good"
    assert result["variables"] == {"X": "ab", "Y": "good"}
    assert result["value"] == "ab"
    shares = result["distributions"]["Y"]["plain"]
    assert list(shares) == ["good", "bad"]
    assert shares["good"] == pytest.approx(0.731, abs=0.001)
    assert result["usage"] == {"prompt_tokens": 6, "cached_tokens": 2, "output_tokens": 101}
    rows = result["requests"]
    assert [(row["kind"], row["hole"], row["trace"]) for row in rows] == [
        ("generate", "X", 1),
        ("score", "Y", 1),
    ]
    assert rows[0]["finish_reason"] == "eos"
    assert rows[0]["output_tokens"] == 2
    assert rows[0]["cached_tokens"] == 1
    assert rows[0]["duration_s"] >= 0


def test_what_a_decoder_ignores_is_a_warning() -> None:
    with performing_aside(letters) as scene:
        text = 'sample(temperature=1, no_repeat_ngram_size=2)\n    "[X]"'
        code, _, err = run("-", "--url", scene.url, stdin=text)
    assert code == 0
    assert "warning: `no_repeat_ngram_size` is not served and ignored\n" in err


@pytest.mark.parametrize(
    ("setting", "shown"),
    [("n=2", "2"), ("n=two", "'two'"), ('n="2"', "'2'"), ("n=[1]", "[1]"), ("n=", "''")],
)
def test_a_variable_is_json_or_text(setting: str, shown: str) -> None:
    with performing_aside(letters) as scene:
        args = ("-", "--url", scene.url, "--set", setting)
        _, out, _ = run(*args, stdin='"{n!r} [X]"')
    assert out.startswith(f"{shown} ab\n")


@pytest.mark.parametrize(
    ("text", "args", "code", "said"),
    [
        (
            '"A [X" ',
            (),
            2,
            "<stdin>:1:4: '[' opens a hole that is never closed; write '[[' for the sign\n"
            '    "A [X" \n'
            "       ^\n",
        ),
        ('"[X]"\n1 / 0', (), 2, "<stdin>:2:1: ZeroDivisionError: division by zero\n    1 / 0\n"),
        (
            '"[X]" where len(X) < 0',
            (),
            3,
            '    "[X]" where len(X) < 0\n                ^^^^^^^^^^\n',
        ),
        ('"[X]"', ("--set", "1=2"), 2, "--set must be NAME=VALUE with a name of Python"),
        ('"[X]"', ("--set", "if=2"), 2, "Given: 'if=2'"),
        ('"[X]"', ("--trace", "/nowhere/f"), 2, "/nowhere/f: No such file or directory"),
        ('"[X]"', ("--url", "ftp://a"), 2, "url must be host:port"),
        ('"[X]"', ("--url", "127.0.0.1:1"), 1, "nobody listens there\n<stdin>:1:2: asked for [X]"),
    ],
)
def test_errors_point_into_the_program_and_have_their_codes(
    text: str, args: tuple[str, ...], code: int, said: str
) -> None:
    with performing_aside(letters) as scene:
        found, out, err = run("-", "--url", scene.url, *args, stdin=text)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert said in err
    assert "Traceback" not in err


def test_a_file_that_is_not_there_is_the_commands_fault() -> None:
    assert run("/nowhere/a") == (2, "", "error: /nowhere/a: No such file or directory\n")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes that are started from here heed SIGINT, also where those in the background of a
    shell do not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
async def test_an_interrupt_ends_the_run() -> None:
    async def endless(peer: Peer) -> None:
        body = await peer.first("GENERATE")
        await peer.token(body["stream_id"], 0)
        process.send_signal(signal.SIGINT)
        await peer.until_closed()

    async with performing(endless) as scene:
        process = await asyncio.create_subprocess_exec(
            *ARGV, "-", "--url", scene.url, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(b'"[X]"'), 30)
    assert (process.returncode, out, err) == (130, b"", b"")


async def test_a_reader_who_leaves_ends_nothing_with_a_traceback(program: str) -> None:
    async with performing(letters) as scene:
        ours, theirs = os.pipe()
        os.close(ours)
        process = await asyncio.create_subprocess_exec(
            *ARGV, program, "--url", scene.url, "--set", "n=2", stdout=theirs, stderr=PIPE
        )
        os.close(theirs)
        _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    assert b"Traceback" not in err


async def test_on_a_terminal_the_prompt_fills_in_with_its_constraint_below(program: str) -> None:
    async def slow(peer: Peer) -> None:
        await peer.greet()
        while True:
            body = await peer.expect("GENERATE")
            await peer.token(body["stream_id"], 0)
            shown = filling.pop(0)
            while shown not in terminal.said:
                await asyncio.sleep(0.01)
            await peer.token(body["stream_id"], 1)
            await peer.done(body["stream_id"], "ab", "eos")

    filling = [
        "A \x1b[1;36ma\x1b[0m\x1b[36m█",
        "A \x1b[1;36mab\x1b[0m and 2 \x1b[1;32ma\x1b[0m\x1b[32m█",
    ]
    async with performing(slow) as scene:
        args = (program, "--url", scene.url, "--set", "n=2")
        async with on_a_terminal(*args, command="query") as terminal:
            await asyncio.wait_for(terminal.is_over.wait(), 30)
    live, _, final = terminal.said.rpartition("\x1b[?25h")
    assert filling == []
    assert "[X] where: len(X) < 4" in live
    assert "A \x1b[1;36mab\x1b[0m and 2 \x1b[1;32mab\x1b[0m" in final
    assert "\x1b[1mX\x1b[0m = 'ab'" in final


def shown(view: object, *, height: int = 10, width: int = 20) -> list[str]:
    """The lines of a screen, without colours."""
    out = StringIO()
    Console(file=out, width=width, height=height, force_terminal=False).print(view)
    return out.getvalue().splitlines()


def state(prompt: str, trace: int = 0, hole: str | None = "X", **more: object) -> State:
    span = Span("X", prompt.index("<") + 1, len(prompt)) if "<" in prompt else None
    spans = () if span is None else (span,)
    return State(trace=trace, prompt=prompt, spans=spans, hole=hole, **more)  # type: ignore[arg-type]


def test_the_hole_that_fills_has_its_constraint_below() -> None:
    view = LiveView(Palette())
    view.show(state("Say <he", constraint=Constraint("where", "len(X) < 9"), stop=("\n",)))
    lines = shown(view, width=60)
    assert lines == ["Say <he█", "  [X] where: len(X) < 9; stops at '\\n'"]


def test_conditions_call_the_hole_by_its_name_and_patterns_stay() -> None:
    where = Constraint("where", 'len(sentences(X)) == 2 and "X" not in X')
    assert described(where, (), "STORY") == (
        'where: len(sentences(STORY)) == 2 and "X" not in STORY'
    )
    assert described(Constraint("regex", "X+"), (), "STORY") == "regex: X+"


@pytest.mark.parametrize("num_traces", [2, 3, 5])
def test_traces_share_the_screen(num_traces: int) -> None:
    view = LiveView(Palette())
    for trace in range(num_traces):
        view.show(state("\n".join("abcdefghij") + f"\n<{trace}", trace))
    lines = shown(view, height=24)
    assert len(lines) <= 24
    assert [line for line in lines if "█" in line] == [f"<{trace}█" for trace in range(num_traces)]


def test_control_characters_are_made_visible_and_spans_stay_where_they_are() -> None:
    text = Palette().coloured("\x9ba\x1b", [Span("X", 1, 2)])
    assert text.plain == "<9b>a␛"
    assert [(span.start, span.end) for span in text.spans] == [(4, 5)]


def test_the_outcome_names_variables_values_and_shares() -> None:
    choice = Choice(plain={"no": -1.5, "yes": -0.25}, normalised={"no": -0.75, "yes": -0.625})
    result: Result[object] = Result(
        prompt="yes",
        spans=(Span("X", 0, 3),),
        messages=(),
        variables={"X": "yes"},
        value=3,
        distributions={"X": choice},
        logprob=-0.25,
        usage=Usage(),
        requests=(),
    )
    assert outcome(result, returns=True) == [
        "X = 'yes'",
        "returned 3",
        "P(X)                           plain   by length",
        "  'yes'  ################      0.7788  0.5353",
        "  'no'   ####                  0.2231  0.4724",
    ]
    assert "X = 'yes'" in shown(finished(result, Palette(), returns=False), width=80)
