"""The bundled model under load, one shard step alone, the router alone.

    python -m bench

The same as `make bench`. Each part prints one JSON object on a line of its own; a line on stderr
says what comes.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tokenizers import Tokenizer

from bench.command_line import parser_of
from bench.load import Load, Target, random_prompts, run
from bench.processes import running, tandem
from launcher import BUNDLED_MODEL
from processes.addresses import free_port


def main(argv: Sequence[str]) -> int:
    """Answers the exit code: 1 when a part failed."""
    parser_of(__doc__).parse_args(argv)
    _say("one step of the bundled model")
    failed = subprocess.run(
        [sys.executable, "-m", "bench.step", str(BUNDLED_MODEL)], check=False
    ).returncode
    _say("the router alone, 64 streams")
    failed += subprocess.run([sys.executable, "-m", "bench.router"], check=False).returncode
    port = free_port()
    server = tandem(BUNDLED_MODEL, port, ())
    tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    with running(server):
        for concurrency in (1, 8, 32):
            _say(f"the bundled model over HTTP, {concurrency} at a time")
            load = Load(
                num_requests=4 * concurrency,
                prompt_len=64,
                output_len=64,
                concurrency=concurrency,
            )
            target = Target(f"http://127.0.0.1:{port}", "tgi")
            report = asyncio.run(run(target, load, random_prompts(tokenizer, load)))
            sys.stdout.write(json.dumps({"load": asdict(load)} | asdict(report)) + "\n")
            failed += report.num_errors
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stderr.write(f"bench | {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
