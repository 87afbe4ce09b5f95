"""What README and docs/ state is what the code has: flags, defaults, limits, kinds, errors."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from typer.main import get_command

from constraints.check_command import CheckConfig
from constraints.schema.grammar import _MAX_BLANKS, _MAX_TABS
from constraints.spec import Whitespace
from fleet.config import FleetConfig
from launcher import app, serve_settings
from model_server.checkpoint.check import unfit_reason, unfit_reason_on_cuda
from model_server.config import QuantizeConfig, ServeConfig
from model_server.executor.dense_cuda import batch_sizes
from processes.settings import (
    BadConfig,
    CommandLine,
    Group,
    Kind,
    default_of,
    flag_of,
    read_values,
)
from router.config import RouterConfig
from router.engine.admission import MAX_RETRY_S
from router.engine.constraints import _MAX_REMEMBERED
from router.http.app import openapi_without_server
from router.http.bodies import _MAX_STRINGS, _MAX_VALUES, MAX_CONTAINERS, MAX_DEPTH
from router.http.errors import _KINDS, Dialect, problem_of
from router.http.logprobs import MAX_TOP_LOGPROBS
from router.http.openai.formats import _MAX_WORDS
from router.http.responses import store
from router.http.resumption import _MAX_STREAMS, MAX_BYTES
from router.http.server.protocol import MAX_URL_LEN
from router.http.tools import MAX_TOOLS
from router.request.errors import CONSTRAINT_REFUSALS, Cancelled, ContextExceeded
from tests.architecture.test_house import ROOT
from tests.model_server.executor.decoders import decoder

FIGURES = "bench/results/README.md"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / FIGURES),
        *sorted((ROOT / "docs").glob("*.md")),
    )
}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
OTHER_SERVERS = {"TGI", "vLLM", "Ollama", "llama.cpp", "route of vLLM"}
# Of docker, helm, pip, pytest, jq, grep and vLLM; `--switch` and `--no-...` stand for any.
OF_OTHERS = set(
    """
    --build-arg --target --gpus --rm --shm-size --stop-timeout --set --no-deps --require-hashes
    --durations --arg --include --max-num-seqs --switch --no
    """.split()
)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "MB": 1_000_000}
SETTINGS = {flag_of(each.name): each for each in serve_settings()}


@cache
def rows(page: str) -> list[tuple[list[str], list[str]]]:
    """The head and the cells of each row of a page's tables."""
    found = []
    head: list[str] = []
    for line in PAGES[page].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            head = []
        elif not head:
            head = cells
        elif set(cells[0]) != {"-"}:
            found.append((head, cells))
    return found


def ours(page: str) -> str:
    """A page without the columns of other servers."""
    text = PAGES[page]
    for head, cells in rows(page):
        for name, cell in zip(head, cells, strict=False):
            if name in OTHER_SERVERS:
                text = text.replace(f"| {cell} |", "| |")
    return text


# ---- flags


def names_of(each: Field[Any]) -> Iterator[str]:
    for name in (each.name, *each.metadata["aliases"]):
        yield flag_of(name)
        if each.metadata["kind"] is Kind.SWITCH:
            yield flag_of(f"no_{name}")


@cache
def known_flags() -> set[str]:
    """Of every program of this repository."""
    kinds = (RouterConfig, ServeConfig, FleetConfig, CheckConfig, QuantizeConfig)
    settings = (*serve_settings(), *(each for kind in kinds for each in fields(kind)))
    known = {name for each in settings for name in names_of(each)} | {"--help"}
    launcher: Any = get_command(app)
    for command in (launcher, *launcher.commands.values()):
        known |= {flag for parameter in command.params for flag in parameter.opts}
    for folder in ("bench", "tests/conformance", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            known |= set(re.findall(r'"(--[a-z][a-z0-9-]+)"', path.read_text()))
    return known


@pytest.mark.parametrize("page", sorted(PAGES.keys() - {FIGURES}))
def test_a_flag_that_a_page_names_is_one(page: str) -> None:
    assert set(FLAG.findall(ours(page))) - known_flags() - OF_OTHERS == set()


def commands() -> set[str]:
    """Each `launcher serve` of a page, whole lines and those within sentences."""
    texts = [text.replace("\\\n", " ") for text in PAGES.values()]
    lines = [
        line
        for text in texts
        for line in re.findall(r"(?:^(?:\$ )?(?:[A-Z_]+=\S+ )?|`)(launcher serve .*)", text, re.M)
    ]
    # A table of commands explains each behind some blanks.
    return {re.split(r"`| {3,}", line)[0] for line in lines}


@pytest.mark.parametrize(
    "line", sorted(line for line in commands() if "[" not in line and "--help" not in line)
)
def test_a_command_of_a_page_is_in_order(line: str) -> None:
    argv = shlex.split(line, comments=True)[2:]
    by_flag = CommandLine(serve_settings(), "launcher serve", None).parse(argv)
    try:
        named = read_values(serve_settings(), by_flag, {}).keys()
    except BadConfig as error:
        # A file of the reader's.
        if "that exist" not in str(error):
            raise
        named = by_flag.keys()
    assert named == by_flag.keys()


def test_a_module_that_a_page_runs_is_one() -> None:
    """But for programs of a state that the row of a figure names."""
    lines = [line for page in PAGES.values() for line in page.splitlines()]
    named = {
        name
        for line in lines
        if "version 0.1" not in line and "5f34ab12" not in line
        for name in re.findall(r"python3? -m ([\w.]+\w)", line)
    }
    assert len(named) > 8
    assert {name for name in named if find_spec(name) is None} == set()


def numbers(text: str) -> set[float]:
    """Of a text like `32 768 lists` or `8 MiB in all`, both as they stand and with their units."""
    found = re.findall(r"\b(\d+(?: \d{3})*(?:\.\d+)?)(?: (KiB|MiB|MB))?", text)
    counts = [(float(count.replace(" ", "")), unit) for count, unit in found]
    return {count * of for count, unit in counts for of in (1, UNITS.get(unit, 1))}


def has_default(text: str, flag: str) -> bool:
    """Or, where that depends on others, one of those that --help names."""
    default = default_of(SETTINGS[flag])
    if default:
        return float(default) in numbers(text)
    return bool(numbers(SETTINGS[flag].metadata["help"]) & numbers(text))


def test_a_number_behind_a_flag_is_its_default() -> None:
    """As in `--max-restarts` times (5)."""
    said = {
        (flag, text)
        for page in PAGES
        for flag, text in re.findall(r"`(--[a-z-]+)`(?: times| seconds)? \((\d[^)]*)\)", ours(page))
        if "once" not in text
    }
    assert len(said) > 10
    assert {(flag, text) for flag, text in said if not has_default(text, flag)} == set()


def test_a_limit_beside_a_flag_in_a_table_is_its_default() -> None:
    said = [
        (flag, limit)
        for page in PAGES
        for head, cells in rows(page)
        if {"limit", "flag"} <= set(head)
        for limit in [cells[head.index("limit")]]
        for flag in FLAG.findall(cells[head.index("flag")])
        if re.match(r"\d", limit) and "more than" not in limit
    ]
    assert len(said) > 8
    assert [(flag, limit) for flag, limit in said if not has_default(limit, flag)] == []


def test_what_is_refused_or_ignored_of_tgis_flags_is_told() -> None:
    words = {Group.INERT: "without effect", Group.REFUSED: "refused"}
    said = {
        (flag, group)
        for page in PAGES
        for head, cells in rows(page)
        if head[:2] == ["flag", "TGI"]
        for group, word in words.items()
        if cells[2].startswith(word)
        for flag in FLAG.findall(cells[0])
    }
    of_tgi = {flag for flag, _ in said}
    assert len(said) > 8
    assert said == {(flag, SETTINGS[flag].metadata["group"]) for flag in of_tgi}


# ---- routes

ROUTE = re.compile(r"`(?:(?:GET|HEAD|POST|DELETE) )?(/[a-z][\w/-]*\w)`")
# A prefix, a socket, pages, and the document itself; the others are folders.
NO_OPERATIONS = {"/v1", "/lmtp", "/docs", "/api-doc/openapi.json"}
FIRST_WORDS = {"v1", "health", "generate", "tokenize", "constraints", "info", "invocations"}


@cache
def routes() -> set[str]:
    return set(openapi_without_server("")["paths"])


def test_a_route_that_a_page_names_is_one() -> None:
    named = {
        route
        for page in PAGES
        for route in ROUTE.findall(ours(page))
        if route.split("/")[1] in FIRST_WORDS and not re.search(r"/[A-Z]", route)
    }
    assert len(named) > 15
    assert named - NO_OPERATIONS - routes() == set()


def test_what_is_said_to_be_the_same_as_in_another_server_is_there() -> None:
    names = {
        name
        for page in PAGES
        for head, cells in rows(page)
        if head[0] in OTHER_SERVERS and cells[1].startswith("the same")
        for name in re.findall(r"`(\S+?)`", cells[0])
    }
    assert len(names) > 15
    assert names - routes() - SETTINGS.keys() == set()


# ---- kinds and numbers


@cache
def kinds_of_quantize() -> dict[str, set[str]]:
    """By device, those of a plain decoder."""
    own = decoder("llama", num_hidden_layers=1)
    with pytest.raises(BadConfig) as refused:
        SETTINGS["--quantize"].metadata["rule"]("")
    kinds = re.findall(r"\w+\d", str(refused.value))
    lens = ((208,),) * len(own.recipe.layers)
    return {
        "CPU": {kind for kind in kinds if unfit_reason(own.recipe, torch.float32, kind) is None},
        "GPU": {k for k in kinds if unfit_reason_on_cuda(own.recipe, lens, 1, k) is None},
    }


def texts() -> dict[str, str]:
    """Pages, and what --help says of each flag."""
    return {**PAGES, **{flag: each.metadata["help"] for flag, each in SETTINGS.items()}}


def test_a_kind_of_quantize_is_said_of_its_device() -> None:
    said = [
        (page, set(re.findall(r"\w+\d", kinds)), device)
        for page, text in texts().items()
        for kinds, device in re.findall(
            r"((?:`?(?:int8|int4|fp8)`?(?:, | or | and )?)+) on (?:an? )?(CPU|GPU)", text
        )
    ]
    assert len(said) > 4
    assert [each for each in said if not each[1] <= kinds_of_quantize()[each[2]]] == []


def test_a_row_of_quantize_has_all_kinds() -> None:
    said = [cells for page in PAGES for _, cells in rows(page) if cells[0] == "`--quantize`"]
    kinds = set().union(*kinds_of_quantize().values())
    assert len(said) > 1
    assert [cells for cells in said if not all(kind in " ".join(cells) for kind in kinds)] == []


def test_decode_steps_are_said_to_be_graphs() -> None:
    """In each row of the flag, and in --help."""
    said = [
        " ".join(cells)
        for page in PAGES
        for _, cells in rows(page)
        if "`--cuda-graphs`" in cells[0]
    ]
    said.append(SETTINGS["--cuda-graphs"].metadata["help"])
    largest = f"up to {batch_sizes(1 << 20)[-1]} sequences"
    assert len(said) > 2
    assert [each for each in said if largest not in each or "graph" not in each] == []


@dataclass(frozen=True)
class Statement:
    """Wherever a page matches, the groups are these."""

    pattern: str
    values: tuple[int, ...]


def numbers_of(groups: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(int(re.sub(r"\s", "", group)) for group in groups)


@pytest.mark.parametrize(
    "statement",
    [
        Statement(r"indentation of at most (\d+) blanks or (\d+) tabs", (_MAX_BLANKS, _MAX_TABS)),
        Statement(r"[Aa]t most (\d+) tools", (MAX_TOOLS,)),
        Statement(r"`top_logprobs` up to (\d+)", (MAX_TOP_LOGPROBS,)),
        Statement(r"`logprobs`, `top_logprobs` \| served \| 0 to (\d+)", (MAX_TOP_LOGPROBS,)),
        Statement(r"can say both\); at most (\d+)", (_MAX_WORDS,)),
        Statement(
            r"at most ([\d ]+) responses and (\d+) MiB",
            (store.MAX_RESPONSES, store.MAX_BYTES >> 20),
        ),
        Statement(r"of those that have ended the last (\d+)", (store.MAX_ENDED,)),
        Statement(r"At most (\d+) streams are kept \((\d+) MiB\)", (_MAX_STREAMS, MAX_BYTES >> 20)),
        Statement(r"Results are cached \((\d+)", (_MAX_REMEMBERED,)),
        Statement(r"time to drain, 1 to (\d+) s\b", (int(MAX_RETRY_S),)),
        Statement(r"\| URL \| (\d+) bytes", (MAX_URL_LEN,)),
        Statement(
            r"(\d+) levels; ([\d ]+) lists and objects, ([\d ]+) keys and texts .*?, ([\d ]+) val",
            (MAX_DEPTH, MAX_CONTAINERS, _MAX_STRINGS, _MAX_VALUES),
        ),
    ],
    ids=lambda each: each.pattern,
)
def test_a_number_is_the_codes(statement: Statement) -> None:
    found = [
        match.groups() for text in PAGES.values() for match in re.finditer(statement.pattern, text)
    ]
    assert found
    assert {numbers_of(groups) for groups in found} == {statement.values}


def test_each_kind_of_whitespace_is_explained() -> None:
    said = [cells[0] for head, cells in rows("docs/constraints.md") if head[0] == "`whitespace`"]
    assert {re.findall(r"`(\w+)`", cell)[0] for cell in said} == {each.value for each in Whitespace}


# ---- errors and metrics


def test_openais_errors_are_listed_with_their_codes() -> None:
    listed = {
        (int(status), code)
        for head, cells in rows("docs/openai.md")
        if head[:2] == ["status", "code"]
        for status in re.findall(r"\d+", cells[0])
        for code in re.findall(r"\w+", cells[1])
    }
    kinds = [kind for error, kind in _KINDS.items() if error is not Cancelled]
    own = {(kind.openai_status or kind.status, kind.code) for kind in kinds if kind.code}
    # One that cannot be parsed has no code; what the output has broken already is LMTP's.
    own |= {(422, reason) for reason in set(CONSTRAINT_REFUSALS) - {"malformed", "broken"}}
    assert own - listed == set()


@pytest.mark.parametrize("dialect", [Dialect.OPENAI, Dialect.ANTHROPIC])
def test_a_context_that_is_too_short_is_told_in_the_words_that_are_listed(dialect: Dialect) -> None:
    page = {Dialect.OPENAI: "docs/openai.md", Dialect.ANTHROPIC: "docs/anthropic.md"}[dialect]
    words = re.findall(
        r"[^\"`(]*(?:`max_tokens`[^\"`]*)?\b[NML] (?:tokens|\+)[^\",`)]*", PAGES[page]
    )
    errors = [
        ContextExceeded("", "messages", num_prompt_tokens=9, max_prompt_len=8),
        ContextExceeded(
            "",
            "max_tokens",
            num_prompt_tokens=5,
            max_prompt_len=8,
            num_new_tokens=6,
            max_total_len=9,
        ),
    ]
    messages = [json.loads(problem_of(each, dialect).body)["error"]["message"] for each in errors]
    patterns = [re.sub(r"\b[NML]\b", r"\\d+", re.escape(each.strip())) for each in words]
    assert patterns
    assert all(any(re.search(each, text) for text in messages) for each in patterns)
    assert all(any(re.search(each, text) for each in patterns) for text in messages)


def test_a_metric_that_a_page_names_is_one() -> None:
    """docs/metrics.md has a test of its own, which says that it has them all."""
    declared = {
        name
        for folder in ("router", "fleet")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r'"((?:tgi|tandem)_[a-z_]+)"', path.read_text())
    }
    named = {
        name
        for page, text in PAGES.items()
        if page != "docs/metrics.md"
        for name in re.findall(r"`((?:tgi|tandem)_[a-z_]*[a-z])(?=[`{\[])", text)
    }
    suffix = re.compile(r"_(total|bucket|sum|count)$")
    unknown = {each for each in named if not {each, suffix.sub("", each)} & declared}
    assert len(named) > 20
    # A folder, and what TGI has and Tandem not.
    assert unknown <= {"tgi_client", "tgi_batch_concat_duration"}
