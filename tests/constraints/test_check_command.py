"""`launcher check` as it is typed, without a server.

Jobs are done in this process; in processes of their own where these have to be ended.
"""

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from constraints.compiler import Compiler
from constraints.errors import ConstraintError
from constraints.vocabulary import Vocabulary
from constraints.worker.__main__ import Work
from constraints.worker.jobs import Answer, Job
from constraints.worker.pool import PoolRules, VocabularyFile
from tests.byte_tokenizer import save_byte_tokenizer
from tests.command_line import run_launcher


class WorkHere:
    """The jobs of a pool, done in this process without limits."""

    def __init__(self, file: VocabularyFile, rules: PoolRules) -> None:
        vocabulary = _vocabulary(file)
        self._work = Work(vocabulary, Compiler(vocabulary), 1 << 30)

    async def wait_ready(self) -> None: ...

    async def do(self, job: Job) -> Answer:
        answer = self._work.answer(job)
        if isinstance(answer, ConstraintError):
            raise answer
        return answer

    async def close(self) -> None: ...


@cache
def _vocabulary(file: VocabularyFile) -> Vocabulary:
    return Vocabulary.load(file.tokenizer_path, file.vocab_size, list(file.end_ids))


@pytest.fixture(autouse=True)
def _work_here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "in_processes" not in request.fixturenames:
        monkeypatch.setattr("constraints.check_command.WorkerPool", WorkHere)


@pytest.fixture
def in_processes() -> None:
    """Leaves the jobs to workers."""


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def check(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_launcher("check", *args, stdin=stdin)


@pytest.mark.usefixtures("in_processes")
def test_an_accepted_text_is_shown_with_the_shortest_there_is() -> None:
    said = check("--type", "regex", "--constraint", "(foo|bar)+[0-9]{2}", "--text", "barfoo12")
    assert said.returncode == 0
    assert "accepted  barfoo12" in said.stdout
    assert "shortest legal text found: 'foo00'" in said.stdout


def test_a_refused_text_has_a_caret_at_the_first_character_that_cannot_stand(
    tmp_path: Path,
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    path = str(tmp_path / "schema.json")
    said = check("--type", "json", "--constraint", path, "--text", '{"name": "é", "age": x}')
    assert said.returncode == 1
    line, caret, expected, legal, *_ = said.stdout.splitlines()[1:]
    assert line == '  {"name": "é", "age": x}'
    assert caret == " " * (2 + 21) + "^"
    assert expected.endswith("'-', a digit")
    assert legal.startswith("  legal there: ")


@pytest.mark.parametrize(
    ("kind", "constraint", "unfinished", "wrong", "expected"),
    [
        ("choice", '["yes", "no"]', "ye", "yo", "'s'"),
        ("regex", "[0-9]{2}", "1", "1x", "a digit"),
        ("lark", 'start: "a" "b"', "a", "ax", "'b'"),
        ("gbnf", 'root ::= "a" "b"', "a", "ax", "'b'"),
        ("where", "len(words(X)) == 3 and len(X) < 9", "a b ", "a b c d e", "any character"),
        ("json", '{"type": "integer", "minimum": 10}', "1", "x", "a digit"),
        ("json", '{"required": ["a"], "type": "object"}', "{", "}", "'\"a\"'"),
    ],
)
def test_a_text_that_ends_too_early_is_unfinished_and_names_what_is_missing(
    kind: str, constraint: str, unfinished: str, wrong: str, expected: str
) -> None:
    said = check("--type", kind, "--constraint", constraint, "--text", unfinished, "--text", wrong)
    assert said.returncode == 1
    size = len(unfinished)
    assert f"unfinished  at character {size}, where the text ends" in said.stdout
    assert expected in said.stdout.partition("refused")[0]
    assert said.stdout.count("unfinished") == said.stdout.count("refused") == 1


def test_what_is_checked_at_the_close_of_a_value_is_named() -> None:
    schema = '{"type": "array", "items": {"type": "number", "not": {"type": "integer"}}}'
    asked = ("--type", "json", "--constraint", schema)
    said = check(*asked, "--text", "[0.5, 5]")
    assert said.returncode == 1
    assert "checked at the close of a value: /items/not" in said.stdout
    assert "not enforced" not in said.stdout
    assert check(*asked, "--text", "[0.5]").returncode == 0
    refused = check("--strict", *asked, "--text", "[0.5]")
    assert refused.returncode != 0
    assert "/items/not" in refused.stdout + refused.stderr


def test_a_text_is_judged_by_the_whole_of_a_lenient_schema() -> None:
    schema = '{"type": "array", "anyOf": [{"uniqueItems": true}, {"maxItems": 1}]}'
    said = check("--type", "json", "--lenient", "--constraint", schema, "--text", "[1,1]")
    assert said.returncode == 1
    assert "is not valid under any of the given schemas" in said.stdout
    assert "not enforced: /anyOf/0/uniqueItems" in said.stdout


def test_whitespace_is_that_of_requests() -> None:
    schema = '{"type": "array", "items": {"type": "integer"}}'
    words = ("--type", "json", "--constraint", schema, "--whitespace", "optional")
    assert check(*words, "--text", "[1, 2,3]").returncode == 0
    assert check(*words, "--text", "[1,  2]").returncode == 1


def test_keys_may_come_in_any_order_and_it_is_said_which_masks_have() -> None:
    words = ("--type", "json", "--constraint", json.dumps(SCHEMA))
    said = check(*words, "--text", '{"age": 1, "name": "A"}')
    assert said.returncode == 0
    accepted, note, *_ = said.stdout.splitlines()
    assert accepted == 'accepted  {"age": 1, "name": "A"}'
    assert note.startswith("  at character 2: an instance; masks write it otherwise: keys in the")
    in_any_order = check(*words, "--text", '{"age": 1, "name": "A"}', "--key-order", "any")
    assert "an instance" not in in_any_order.stdout


def test_lines_of_json_come_back_as_lines_of_json(tmp_path: Path) -> None:
    texts = ["12", "1x", "", "123"]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    said = check("--type", "regex", "--constraint", "[0-9]{2}", "--lines", str(path))
    assert said.returncode == 1
    judged = [json.loads(line) for line in said.stdout.splitlines()]
    assert [each["text"] for each in judged] == texts
    assert [each["accepted"] for each in judged] == [True, False, False, False]
    assert [each["position"] for each in judged] == [None, 1, 0, 2]
    assert judged[1]["expected"] == ["a digit"]
    assert judged[3]["expected"] == ["the end"]


def test_lines_and_constraint_may_come_from_the_standard_input() -> None:
    many = "".join(json.dumps({"text": str(number)}) + "\n" for number in range(200))
    said = check("--type", "regex", "--constraint", "[0-9]+", "--lines", "-", stdin=many)
    assert said.returncode == 0
    assert len(said.stdout.splitlines()) == 200
    said = check("--type", "lark", "--constraint", "-", "--text", "ab", stdin='start: "a" "b"')
    assert (said.returncode, said.stdout.splitlines()[0]) == (0, "accepted  ab")


def test_the_last_line_end_of_a_file_is_no_part_of_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "pattern.txt"
    path.write_text("a+\n")
    assert check("--type", "regex", "--constraint", str(path), "--text", "aa").returncode == 0
    said = check("--type", "regex", "--constraint", "-", "--text", "a\n", stdin="a+\n")
    assert said.returncode == 1


@pytest.mark.slow
@pytest.mark.usefixtures("in_processes")
def test_a_line_that_takes_too_long_is_an_error_among_the_others() -> None:
    texts = ["ab", "a" * 300_000, "b"]
    said = check(
        "--type=regex",
        "--constraint=a+b",
        "--lines=-",
        "--constraint-timeout=0.1",
        stdin="".join(json.dumps({"text": text}) + "\n" for text in texts),
    )
    judged = [json.loads(line) for line in said.stdout.splitlines()]
    assert said.returncode == 1
    assert [each["accepted"] for each in judged] == [True, False, False]
    assert [each["position"] for each in judged] == [None, 0, 0]
    assert "more than 0.1 s" in judged[1]["error"]


def test_lines_that_are_no_text_are_an_error_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b"\x8e\xff\x00")
    said = check("--type", "regex", "--constraint", "a", "--lines", str(path))
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("error: line 1: must be ")
    assert len(said.stderr.splitlines()) == 1


def test_the_tokens_are_those_of_the_model_that_is_named(tmp_path: Path) -> None:
    folder = str(save_byte_tokenizer(tmp_path))
    said = check("--type", "regex", "--constraint", "[a-z]+", "--text", "1", "--tokenizer", folder)
    assert "expected: a to z\n  legal there: 26 tokens" in said.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("in_processes")
def test_what_takes_too_long_to_compile_is_a_constraint_that_cannot_be_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "choices.json"
    path.write_text(json.dumps([f"{7919 * index % 100003:x}" for index in range(100_000)]))
    refused = check("--type=choice", f"--constraint={path}", "--constraint-timeout=0.05")
    assert refused.returncode == 2
    assert "more than 0.05 s" in refused.stderr


LINES = ("--type=regex", "--constraint=a", "--lines=-")


@pytest.mark.parametrize(
    ("args", "stdin", "said"),
    [
        (("--type=regex", "--constraint=(foo|bar)+[0-9", "--text=1"), "", "^"),
        (("--type=regex", "--constraint=a[", "--lines=-"), "", "never closed"),
        (
            ("--type=json", '--constraint={"type": "integer", "minimum": 2, "maximum": 1}'),
            "",
            '"minimum"',
        ),
        (("--type=json", '--constraint={"$dynamicRef": "#a"}', "--text=1"), "", "/$dynamicRef"),
        (("--type=json", "--constraint=no/such.json"), "", "there is no file no/such.json"),
        (("--type=regex", "--constraint=a", "--text=a", "--lines=x"), "", "give one of them"),
        (("--type=regex", "--constraint=a", "--lines=/nowhere"), "", "--lines /nowhere"),
        (("--type=regex", "--constraint=a", "--tokenizer=/no"), "", "--tokenizer /no"),
        (("--type=regex", "--constraint=a", "--tokenizer=~nobody/x"), "", "does not exist"),
        (LINES, '{"text": "a"}\n{"words": "a"}\n', "line 2"),
        (LINES, '{"text": "a"}\n' + "[" * 100_000, "line 2: must be {"),
    ],
    ids=repr,
)
def test_what_cannot_be_obeyed_ends_with_2_and_says_why(
    args: tuple[str, ...], stdin: str, said: str
) -> None:
    refused = check(*args, stdin=stdin)
    assert refused.returncode == 2
    assert not refused.stdout or args is LINES, "lines before it are judged"
    of_flags, of_constraints = "error", ("Malformed", "Contradiction", "NotEnforced")
    assert refused.stderr.partition(": ")[0] in (of_flags, *of_constraints)
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1 or not refused.stderr.startswith(of_flags)
    assert ("no file" in refused.stderr) == ("no file" in said)
