"""`launcher check`: judges texts under a constraint, without a server.

The constraint is compiled as in a server: in a process with limits of time and memory.
Exit codes: 0 all texts accepted, 1 some refused, 2 the constraint cannot be read, or not be kept,
or the command line is at fault.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from constraints.errors import ConstraintError, TooComplex
from constraints.spec import ConstraintSpec, Judgement, JudgeResult, Kind, Whitespace
from constraints.special_tokens import EndTokens
from constraints.worker.jobs import Judge
from constraints.worker.pool import PoolBusy, PoolRules, VocabularyFile, WorkerBug, WorkerPool
from processes.model_folders import HubError, find_folder
from processes.rules import one_of
from processes.settings import BadConfig, Group, setting
from processes.settings import Kind as Spelling
from processes.zygote.client import ZygoteFailed

ALL_ACCEPTED = 0
SOME_REFUSED = 1
BAD_CONSTRAINT = 2

STDIN = "-"
# The files of a model that define its tokens.
_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json")
# Texts that are probably not meant as constraints.
_FILE_NAME = re.compile(r"[\w./~-]{1,200}\.(?:json|txt|re|regex|lark|gbnf|ebnf|where)")
# The most characters of a long line that are shown on each side of the place.
_SHOWN_LEN = 40
_LONGEST_OUTPUT = 1 << 20


_KINDS = {
    "json" if kind is Kind.JSON_SCHEMA else kind.value: kind
    for kind in Kind
    if kind is not Kind.TEXT
}
_setting = partial(setting, group=Group.CONSTRAINT, env=False)


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """The settings of `launcher check`. `text`: output for people, `lines`: for programs.

    Raises BadConfig when settings contradict each other, and for texts with lone surrogates.
    """

    type: str = _setting(
        ..., f"the language of the constraint: {', '.join(_KINDS)}", one_of(*_KINDS)
    )
    constraint: str = _setting(..., "a file, the constraint itself, or - for stdin", str)
    tokenizer: str = _setting(
        "", "a model's folder, its tokenizer.json or a hub id; absent: the bundled model's"
    )
    whitespace: str = _setting(
        "flexible",
        "whitespace in JSON: flexible, compact, spaced or optional",
        one_of(*(each.value for each in Whitespace)),
    )
    lenient: bool = _setting(
        False, "enforce what can be of a schema, and list the rest", kind=Spelling.SWITCH
    )
    key_order: str = _setting(
        "schema", "of a schema's objects: schema or any", one_of("schema", "any")
    )
    strict: bool = _setting(
        False,
        "refuse what masks cannot keep of a schema, which is else judged where a value ends",
        kind=Spelling.SWITCH,
    )
    text: tuple[str, ...] = _setting(
        (), "a text to judge; may be repeated", str, kind=Spelling.REPEATED
    )
    lines: str | None = _setting(
        None, 'JSON lines {"text": ...} to judge, a file or - for stdin', str
    )

    def __post_init__(self) -> None:
        if self.text and self.lines is not None:
            raise BadConfig("--text and --lines: give one of them")
        if self.constraint == self.lines == STDIN:
            raise BadConfig("--constraint and --lines: only one of them can be the standard input")
        for each in self.text:
            require_text(each, "--text")


def read_constraint(config: CheckConfig) -> ConstraintSpec:
    """The constraint: the file of that name, the standard input for `-`, or the text itself.

    Raises BadConfig.
    """
    text = source = config.constraint
    try:
        if source == STDIN:
            text = sys.stdin.read().removesuffix("\n")
        elif os.path.isfile(source):
            # Editors end the last line, too; that is no part of a pattern.
            text = Path(source).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"--constraint {source}: {error}") from error
    return ConstraintSpec(
        _KINDS[config.type],
        require_text(text, "--constraint"),
        Whitespace(config.whitespace),
        config.lenient,
        any_key_order=config.key_order == "any",
        strict=config.strict,
    )


def check(config: CheckConfig, timeout_s: float, memory_bytes: int, out: TextIO) -> int:
    """Judges the texts, writes the judgements, returns the exit code. Raises BadConfig."""
    rules = PoolRules(cpu_s=timeout_s, memory_bytes=memory_bytes, wait_s=60.0 + timeout_s)
    return asyncio.run(_check(config, rules, out))


async def _check(config: CheckConfig, rules: PoolRules, out: TextIO) -> int:
    spec = read_constraint(config)
    pool = WorkerPool(find_vocabulary(config.tokenizer), rules)
    try:
        await pool.wait_ready()
        if config.lines is not None:
            return await _judge_lines(pool, spec, config.lines, out)
        return await _judge_texts(pool, spec, config.text, Console(file=out, highlight=False))
    except ConstraintError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        if _FILE_NAME.fullmatch(spec.text):
            hint = f"there is no file {spec.text}, so this was read as the constraint itself\n"
            sys.stderr.write(hint)
        return BAD_CONSTRAINT
    except ZygoteFailed as error:
        raise BadConfig(f"--tokenizer {config.tokenizer}: {error}") from error
    except (PoolBusy, WorkerBug) as error:
        raise BadConfig(f"the constraint could not be checked: {error}") from error
    finally:
        await pool.close()


async def _judge_texts(
    pool: WorkerPool, spec: ConstraintSpec, texts: tuple[str, ...], console: Console
) -> int:
    judged = await pool.do(Judge(spec, texts, _LONGEST_OUTPUT))
    assert isinstance(judged, JudgeResult)
    for text, judgement in zip(texts, judged.judgements, strict=True):
        console.print(shown(text, judgement), soft_wrap=True)
    console.print(_about(judged), soft_wrap=True)
    return ALL_ACCEPTED if all(each.accepted for each in judged.judgements) else SOME_REFUSED


async def _judge_lines(pool: WorkerPool, spec: ConstraintSpec, name: str, out: TextIO) -> int:
    code = ALL_ACCEPTED
    with _opened(name) as lines:
        # Report errors of the constraint first, even if there are no lines.
        await pool.do(Judge(spec, (), _LONGEST_OUTPUT))
        for text in _texts(lines):
            try:
                judged = await pool.do(Judge(spec, (text,), _LONGEST_OUTPUT))
                assert isinstance(judged, JudgeResult)
                judgement = judged.judgements[0]
            except TooComplex as error:
                # Each line has limits of time and memory of its own.
                judgement = Judgement(False, 0, (), 0, failure=str(error))
            out.write(json.dumps(judgement.as_object(text), ensure_ascii=False) + "\n")
            out.flush()
            if not judgement.accepted:
                code = SOME_REFUSED
    return code


def shown(text: str, judgement: Judgement) -> Text:
    """The judgement of a text for people: the line with a caret, and what was expected."""
    if judgement.position is None:
        accepted = Text.assemble(("accepted  ", "bold green"), _visible(text)[:200])
        note = judgement.note
        if note is not None:
            accepted.append(f"\n  at character {note.position}: {_visible(note.message)}")
        return accepted
    line_start = text.rfind("\n", 0, judgement.position) + 1
    line_end = text.find("\n", judgement.position)
    line = text[line_start : len(text) if line_end < 0 else line_end]
    column = judgement.position - line_start
    before = _visible(line[max(0, column - _SHOWN_LEN) : column])
    after = _visible(line[column : column + _SHOWN_LEN])
    where = f"at character {judgement.position}"
    verdict = ("refused   ", "bold red")
    if judgement.position == len(text):
        where += ", where the text ends"
        # Its beginning is no mistake.
        verdict = verdict if judgement.failure else ("unfinished  ", "bold yellow")
    result = Text.assemble(verdict, where, "\n  ", before, after)
    result.append("\n  " + " " * cell_len(before))
    result.append("^\n", "bold red")
    lines = [] if judgement.failure is None else [judgement.failure]
    if judgement.expected:
        lines.append(f"expected: {', '.join(judgement.expected)}")
        lines.append(f"legal there: {_tokens(judgement.num_legal)}")
    return result.append("\n".join(f"  {line}" for line in lines))


def _about(judged: JudgeResult) -> Text:
    summary = Text()
    summary.append("shortest legal text found: ", "bold")
    if judged.shortest is None:
        summary.append("none")
    else:
        summary.append(f"{judged.shortest!r} ({_tokens(judged.min_len or 0)})")
    for phrase in judged.dropped_phrases:
        summary.append(f"\nends before {phrase!r}, which is cut off the output")
    for pointer in judged.checked_at_close:
        summary.append("\nchecked at the close of a value: ", "bold").append(pointer)
    for pointer in judged.not_enforced:
        summary.append("\nnot enforced: ", "bold yellow").append(pointer or "the whole schema")
    return summary


def find_vocabulary(name: str) -> VocabularyFile:
    """The tokens of a model: a folder, its tokenizer.json, or a hub id. Raises BadConfig."""
    path = Path(os.path.expanduser(name))
    is_file = os.path.isfile(path)
    try:
        folder = path.parent if is_file else find_folder(name, None, _FILES, noun="tokenizer")
    except HubError as error:
        raise BadConfig(f"--tokenizer {name}: {error}") from error
    file = path if is_file else folder / "tokenizer.json"
    if not file.is_file():
        raise BadConfig(f"--tokenizer {name}: {file} is missing")
    try:
        end_ids = EndTokens.read(folder, file).ids
    except (OSError, ValueError) as error:
        raise BadConfig(f"--tokenizer {name}: {error}") from error
    return VocabularyFile(file, None, end_ids, _LONGEST_OUTPUT)


def _opened(name: str) -> BinaryIO:
    try:
        return open(sys.stdin.fileno() if name == STDIN else name, "rb", closefd=name != STDIN)
    except OSError as error:
        raise BadConfig(f"--lines {name}: {error}") from error


def _texts(lines: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadConfig(f'line {number}: must be {{"text": "..."}}: {error}') from None
        yield require_text(text, f"line {number}")


def require_text(text: object, place: str) -> str:
    """A text without lone surrogates. Raises BadConfig."""
    if not isinstance(text, str):
        raise BadConfig(f"{place}: the text must be a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadConfig(f"{place}: the text is not valid Unicode: {error}") from error
    return text


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


def _visible(text: str) -> str:
    return "".join(each if each.isprintable() else "·" for each in text)
