"""Every example runs on the bundled model, and shows what it is there to show.

So do the snippets of the page about queries. Those with openai's package ask the real model
(tests/conformance/clients/test_real_model.py).
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from client.query import Result, model, read_file, run_all_sync, run_sync
from tests.integration.server import RunningServer

pytestmark = pytest.mark.slow

WITH_OPENAI = {"test_extract", "test_tools"}
EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES.parent / "docs" / "queries.md"
# A program, of the query language or of Python, and what it shows.
_BLOCK = r"^```{}\n((?:(?!```).*\n)*)```\n"
_SHOWN = re.compile(_BLOCK.format("(python)?") + _BLOCK.format(""), re.MULTILINE)
SNIPPETS = _SHOWN.findall(PAGE.read_text())


def results(server: RunningServer, name: str) -> tuple[Result[object], ...]:
    program = read_file(next(EXAMPLES.glob(f"*_{name}.query")))
    return run_all_sync(program, model=model(url=server.url))


def printed(server: RunningServer, name: str) -> list[str]:
    return printed_by(server, next(EXAMPLES.glob(f"*_{name}.py")))


def printed_by(server: RunningServer, script: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, script],
        env={"TANDEM_URL": server.url, "PYTHONPATH": str(EXAMPLES.parent), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_one_hole(server: RunningServer) -> None:
    (result,) = results(server, "one_hole")

    assert result["ANSWER"] == " Doric Caldman lives in Eldhaven."


def test_conditions(server: RunningServer) -> None:
    (result,) = results(server, "conditions")

    assert (result["TOWN"], result["OTHER"]) == (" Eldhaven", " Bramdale")
    assert str(result["STORY"]).count(".") == 2
    assert result["COUNT"] in range(1, 10)


def test_odd_one_out(server: RunningServer) -> None:
    (result,) = results(server, "odd_one_out")

    assert result["RESULT"] == " pear"
    assert result.distributions["RESULT"].plain[" pear"] > -0.1


def test_calculator(server: RunningServer) -> None:
    (result,) = results(server, "calculator")

    assert result.value == 57


def test_search(server: RunningServer) -> None:
    (result,) = results(server, "search")

    assert "Act 4: Search 'Goldenfield'" in result.prompt
    assert str(result.value) in "Wendle"


def test_record(server: RunningServer) -> None:
    assert printed(server, "record") == [
        "Person(name='Nelby Lakeridge', age=43, town='Eldhaven', likes=['soup', 'plums'])",
        "44",
    ]


def test_samples(server: RunningServer) -> None:
    stories = [str(result["STORY"]) for result in results(server, "samples")]

    assert [story.count(".") for story in stories] == [2, 2, 2]
    assert stories == [str(result["STORY"]) for result in results(server, "samples")]


def test_beams(server: RunningServer) -> None:
    best, *others = results(server, "beams")

    assert len(others) == 2
    assert all(best.logprob >= other.logprob for other in others)
    assert best["MOOD"] in [" happy", " sad", " very hungry"]


def test_chat(server: RunningServer) -> None:
    (result,) = results(server, "chat")

    assert [turn.role for turn in result.messages] == ["user", "assistant"] * 3
    assert result["GREETING"] == "Hello! What can I do for you today?"


def test_nested(server: RunningServer) -> None:
    *_, again, requests = printed(server, "nested")

    assert again == "And Doric Caldman once more: Eldhaven."
    assert requests.startswith("4 requests")


def test_countries(server: RunningServer) -> None:
    (result,) = results(server, "countries")

    # What this model knows nothing of fits all the same.
    assert len(str(result["CAPITAL"]).split()) == 1
    assert result["CONTINENT"] in (" Africa", " America", " Asia", " Europe")
    assert set(result.distributions["COUNTRY"].plain) == {" France", " Italy", " Japan", " Egypt"}


@pytest.mark.parametrize(("language", "program", "shown"), SNIPPETS)
def test_a_snippet_of_the_page_shows_what_is_printed_there(
    server: RunningServer, tmp_path: Path, language: str, program: str, shown: str
) -> None:
    if language:
        script = tmp_path / "snippet.py"
        script.write_text(program)
        assert printed_by(server, script) == shown.splitlines()
        return
    result = run_sync(program, url=server.url)

    assert result.prompt == shown.removesuffix("\n")


def test_the_page_has_snippets() -> None:
    assert len(SNIPPETS) == 8


def test_every_example_is_tried_here() -> None:
    names = {path.stem.partition("_")[2] for path in EXAMPLES.glob("[0-9]*")}

    assert {f"test_{name}" for name in names} <= {*globals(), *WITH_OPENAI}
