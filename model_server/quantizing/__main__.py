"""`launcher quantize`, as a process of its own.

    python -m model_server.quantizing MODEL_ID OUT ...

Exit codes: 0 made; 1 refused or stopped; 2 a bad flag or variable. Beside 1 and 2 there is a line
on stderr, and no OUT.
"""

# ruff: noqa: E402
from processes.image_processor import hide_unfit_torchvision

hide_unfit_torchvision()

import logging
import signal
import sys
from typing import NoReturn

from safetensors import SafetensorError
from transformers.utils.logging import disable_progress_bar

from model_server import config
from model_server.errors import ShardError
from model_server.quantizing.quantize import quantize
from processes.logs import start_logging
from processes.settings import BadConfig
from processes.signals import stop_signals


def main(argv: list[str]) -> int:
    """Quantize one checkpoint; returns the exit code."""
    for number in stop_signals():
        signal.signal(number, _stop)
    try:
        settings = config.parse_quantize(argv)
        start_logging("info", json_output=False)
        if not sys.stderr.isatty():
            disable_progress_bar()
        made = quantize(settings)
    # Those that are not ours are of disks.
    except (BadConfig, ShardError, OSError, SafetensorError, KeyboardInterrupt) as error:
        logging.shutdown()
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, BadConfig) else 1
    logging.shutdown()
    sys.stdout.write(f"{made}\n")
    return 0


def _stop(*_: object) -> NoReturn:
    # No Exception, which those who try things out would take for their own.
    raise KeyboardInterrupt("stopped, and nothing was made")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
