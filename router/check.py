"""`python -m router.check`: whether a router could start with these settings and this tokenizer.

Exit codes: 0 it could; 1 the tokenizer cannot be read; 2 a bad flag. It loads no HTTP server, so
that it takes a fraction of a second.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from processes.settings import BadConfig
from router.config import read_config
from router.http.server.tls import server_tls
from router.request.errors import StartupFailed
from router.text.tokenizer import Tokenizer


def main(argv: Sequence[str]) -> int:
    """Check a command line of the router, whose --tokenizer-name is a folder."""
    try:
        config = read_config(argv)
        server_tls(config)
        if config.tokenizer_name is not None:
            Tokenizer.load(Path(config.tokenizer_name), config.tokenizer_config_path).close()
    except (BadConfig, StartupFailed) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, BadConfig) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
