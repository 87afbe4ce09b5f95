"""The paper's case studies, again: `generate()` in chunks against query programs, counted.

    python -m bench.paper [--cases 200] [--curve-cases 40] [--studies react arithmetic]

Starts servers of the bundled model and writes paper.md, paper.json and paper-chunks.svg into
bench/results. Ten minutes on two cores that do nothing else. With --rewrite it runs nothing: page
and picture are made again of the figures in paper.json, lines of code counted anew.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from bench.compare import running, tandem
from bench.paper.cases import draw
from bench.paper.counting import Counts
from bench.paper.curve import Panel, svg
from bench.paper.lines import of_files
from bench.paper.page import StudyResult, page
from bench.paper.published import PUBLISHED
from bench.paper.study import (
    Measured,
    baseline_files,
    measure_generate,
    measure_query,
    program_file,
)
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
T = TypeVar("T")
CHUNKS = (10, 20, 30, 40, 50, 60, 70)


def served(work: Callable[[str, Tokenizer], Coroutine[object, object, T]]) -> T:
    """What is done with a server that has just been started."""
    tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    port = free_port()
    with running(tandem(BUNDLED_MODEL, port, ())):
        return asyncio.run(work(f"http://127.0.0.1:{port}", tokenizer))


def result(study: str, args: argparse.Namespace) -> StudyResult:
    """A study: its program and its baseline in full on servers of their own, since one finds the
    other's prefixes; then the other chunk sizes with fewer cases on a third, where only calls and
    tokens are counted."""
    cases, at = draw(study, args.cases), PUBLISHED[study].chunk
    few, n = cases[: args.curve_cases], args.at_a_time

    async def others(url: str, tokenizer: Tokenizer) -> dict[int, Measured]:
        return {
            size: _told(
                f"{study}, {size}", await measure_generate(url, tokenizer, study, few, size, n)
            )
            for size in CHUNKS
            if size != at
        }

    program = served(lambda url, tokenizer: measure_query(url, tokenizer, study, cases, n))
    _told(f"{study}, program", program)
    baseline = served(lambda url, tokenizer: measure_generate(url, tokenizer, study, cases, at, n))
    _told(f"{study}, {at}", baseline)
    return _with_lines(study, program, {at: baseline} | served(others))


def study_result(told: Mapping[str, Any]) -> StudyResult:
    """A study as paper.json tells of it."""
    by_chunk = {int(size): _measured(each) for size, each in told["by_chunk"].items()}
    return _with_lines(told["study"], _measured(told["program"]), by_chunk)


def _with_lines(study: str, program: Measured, by_chunk: Mapping[int, Measured]) -> StudyResult:
    return StudyResult(
        study=study,
        program=program,
        by_chunk=by_chunk,
        program_lines=of_files(program_file(study)),
        baseline_lines=of_files(*baseline_files(study)),
    )


def _measured(told: Mapping[str, Any]) -> Measured:
    counts = {name: Counts(**told[name]) for name in ("counted", "in_full", "sent")}
    return Measured(**{**told, **counts})


def _told(what: str, done: Measured) -> Measured:
    sys.stderr.write(f"{what}: {done.num_cases} cases, {done.wall_s:.0f} s, {done.accuracy:.1%}\n")
    return done


def picture(results: Sequence[StudyResult]) -> str:
    """Figure 12 for these studies, as SVG."""
    measures = {
        "generate() calls": "num_calls",
        "model queries": "num_queries",
        "billable tokens": "billable_tokens",
    }
    rows = []
    for name, field in measures.items():
        panels = [
            Panel(
                title=each.published.title,
                by_chunk={c: getattr(m.counted, field) for c, m in each.by_chunk.items()},
                program=getattr(each.program.counted, field),
            )
            for each in results
        ]
        rows.append((name, panels))
    return svg(rows)


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.paper", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cases", type=int, default=200, help="of each study, for the tables")
    parser.add_argument("--curve-cases", type=int, default=40, help="for the other chunk sizes")
    parser.add_argument("--at-a-time", type=int, default=32, help="cases under way at once")
    parser.add_argument("--studies", nargs="+", choices=tuple(PUBLISHED), default=tuple(PUBLISHED))
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write")
    parser.add_argument("--rewrite", action="store_true", help="paper.md of paper.json")
    args = parser.parse_args(argv)
    # Ended by a signal, the servers must end as well: leave by an exception, not at once.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    figures = args.results / "paper.json"
    if args.rewrite:
        told = json.loads(figures.read_text())
        results = [study_result(each) for each in told.values()]
    else:
        results = [result(study, args) for study in args.studies]
    figures.write_text(json.dumps({each.study: asdict(each) for each in results}, indent=1) + "\n")
    (args.results / "paper-chunks.svg").write_text(picture(results))
    numbers = {"cases": args.cases, "curve_cases": args.curve_cases, "at_a_time": args.at_a_time}
    heading = (HERE / "heading.md").read_text().format(**numbers)
    notes = (HERE / "notes.md").read_text().format(**numbers)
    (args.results / "paper.md").write_text(page(results, heading, notes))
    sys.stdout.write(f"{args.results / 'paper.md'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
