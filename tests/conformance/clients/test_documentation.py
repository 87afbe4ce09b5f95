"""What README and docs/ show is run: on the bundled model, and at night on the real one.

```python    the blocks of a page are one program, in their order
```sh        a command, of curl or launcher
```printed   what the block before prints; or `# ...` behind a `print(...)`

What the pages ON_THE_REAL_MODEL say that is printed is what that one says.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conformance.serving import MODEL, ROOT, Served, tandem_python

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ON_THE_REAL_MODEL = {"README.md", "structured-output.md", "tools.md"}
# They load a model of their own.
_AT_NIGHT = re.compile(r"^launcher (serve|quantize)", re.MULTILINE)
# Elsewhere each of its snippets is a test by itself (tests/examples).
ELSEWHERE = {"queries.md"}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r"(?:http://)?(?:127\.0\.0\.1|localhost):3000")
_LAUNCHER = re.compile(r"^(?:\.venv/bin/)?launcher\b", re.MULTILINE)
_TIMEOUT_S = 400
_PRINTED = re.compile(r"^print\(.*\)\n# (.*)$", re.MULTILINE)
# How long it took, what others have left in the cache, and the last digits of probabilities.
_VARYING = re.compile(r"\[requests: .*?\]\n|\b\d\.\d{4}\b")


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    page: str
    line: int
    language: str
    code: str


_NONE = Block("", 0, "", "")


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page.name, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in _BLOCK.finditer(text)
    ]


@dataclass(frozen=True)
class Program:
    """The Python of a page, and the lines that it prints according to it, in their order."""

    page: str
    code: str
    printed: tuple[str, ...]


def programs() -> list[Program]:
    found = []
    for page in PAGES:
        code: list[str] = []
        printed: list[str] = []
        for block, behind in pairwise([*blocks(page), _NONE]):
            if block.language == "python":
                code.append(block.code)
                printed += _PRINTED.findall(block.code)
                printed += behind.code.splitlines() if behind.language == "printed" else []
        if code and page.name not in ELSEWHERE:
            found.append(Program(page.name, "\n".join(code), tuple(printed)))
    return found


def commands() -> list[tuple[Block, str | None]]:
    """With what the page says that they print; None: it does not say."""
    return [
        (block, behind.code if behind.language == "printed" else None)
        for page in PAGES
        for block, behind in pairwise([*blocks(page), _NONE])
        if block.language == "sh"
    ]


def server_of(page: str) -> str:
    """The fixture that serves the model of which a page tells."""
    return "real" if page in ON_THE_REAL_MODEL else "served"


def marks_of(server: str, code: str) -> Sequence[pytest.MarkDecorator]:
    return [pytest.mark.nightly] if server == "real" or _AT_NIGHT.search(code) else []


@pytest.mark.parametrize(
    ("block", "printed", "server"),
    [
        pytest.param(
            block,
            printed,
            server,
            id=f"{block.page}:{block.line}",
            marks=marks_of(server, block.code),
        )
        for block, printed in commands()
        for server in (server_of(block.page),)
    ],
)
def test_a_command_prints_what_the_page_says(
    block: Block,
    printed: str | None,
    server: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    served: Served = request.getfixturevalue(server)
    launcher = shlex.quote(f"{Path(tandem_python()).parent}/launcher")
    script = _LAUNCHER.sub(launcher, _ADDRESS.sub(served.url, block.code))
    script = script.replace("launcher query ", f"launcher query --url {served.url} ")
    script = script.replace("curl ", "curl --no-progress-meter --fail-with-body ")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "my-model").symlink_to(MODEL)

    done = subprocess.run(
        ["bash", "-uo", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )

    is_check = "launcher check " in script
    assert done.returncode == (1 if is_check else 0), done.stdout + done.stderr
    if printed is not None:
        assert _VARYING.sub("", done.stdout).strip() == _VARYING.sub("", printed).strip()


@pytest.mark.parametrize(
    ("page", "server"),
    [
        pytest.param(page, server, id=f"{page.page}-{server}", marks=marks_of(server, ""))
        for page in programs()
        for server in sorted({"served", server_of(page.page)})
    ],
)
def test_the_program_of_a_page_runs(
    page: Program, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    served: Served = request.getfixturevalue(server)
    program = _ADDRESS.sub(served.url, page.code)
    is_ours = re.search(r"^from (client|constraints)\.", program, re.MULTILINE)
    script = tmp_path / "program.py"
    script.write_text(_runnable(program), encoding="utf-8")

    done = subprocess.run(
        [tandem_python() if is_ours else sys.executable, str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    if server == server_of(page.page):
        lines = done.stdout.splitlines()
        assert [line for line in lines if line in page.printed] == list(page.printed), done.stdout


def _runnable(program: str) -> str:
    """A program that may await at its top, as a notebook lets it."""
    if not re.search(r"^(async |await )", program, re.MULTILINE):
        return program
    imports: list[str] = []
    body: list[str] = []
    for line in program.splitlines():
        (imports if re.match(r"(from|import) ", line) else body).append(line)
    indented = "\n".join(f"    {line}" for line in body)
    return "\n".join(
        [*imports, "import asyncio", "async def main():", indented, "asyncio.run(main())"]
    )


def test_there_are_examples() -> None:
    assert len(commands()) >= 15
    assert len(programs()) >= 5
