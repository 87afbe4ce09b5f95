"""The check of a GPU: is it right, and how near to what the machine reaches?

    python -m bench.gpu_check                        (make gpu-check; some minutes on one GPU)
    python -m bench.gpu_check --only speed,serving --out bench/results
    python -m bench.gpu_check --rehearse             (tiny, on a CPU: its own code alone)

Prints a table; with `--out` it is written there as gpu-check.md and gpu-check.json. Fails when a
bound is not kept, or when a part ends by an error. Without a CUDA device it says so and succeeds.
"""

import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bench.command_line import parser_of
from bench.gpu_check import parts
from bench.gpu_check.rows import Part, Row, Sizes, failed, markdown, write

PARTS: Mapping[str, Part] = {
    "machine": parts.machine,
    "tests": parts.tests,
    "speed": parts.speed,
    "serving": parts.serving,
    "adapters": parts.adapters,
    "peer": parts.peer,
}


def main(arguments: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--out", type=Path, help="folder of gpu-check.md and gpu-check.json")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on a CPU")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    if not options.rehearse and not torch.cuda.is_available():
        print("gpu-check: skipped, torch finds no CUDA device here")
        return 0
    device = torch.device("cpu") if options.rehearse else torch.device("cuda", 0)
    found = _run(names, Sizes(device, options.rehearse))
    print(markdown(found))
    if options.out is not None:
        write(options.out, found)
    return int(failed(found))


def _run(names: Sequence[str], sizes: Sizes) -> dict[str, list[Row]]:
    found = {}
    for name in names:
        started_s = time.monotonic()
        try:
            found[name] = PARTS[name](sizes)
        # A part that breaks says so in the table, and the others are run.
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            found[name] = [Row(f"{type(error).__name__}: {error}", 1, wanted=0, is_most=True)]
        print(f"gpu-check: {name} took {time.monotonic() - started_s:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
