"""A shard's command line: commands, flags, defaults. What the values must be, `config.py` says."""

import argparse
from pathlib import Path

DTYPES = ("auto", "bfloat16", "float16", "float32")
DEVICES = ("auto", "cpu", "cuda")
ATTENTIONS = ("auto", "reference", "cpu", "cpu-op", "cuda")
DEFAULT_UDS_PATH = "/tmp/tandem-shard"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def parser() -> argparse.ArgumentParser:
    """All commands, with their flags and defaults."""
    told = argparse.ArgumentParser(
        prog="python -m model_server", description="One tensor-parallel shard of Tandem."
    )
    commands = told.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="load a model and serve it to the router over gRPC")
    _add_serving(serve)
    check = commands.add_parser(
        "check", help="say whether a model could be served, without loading it"
    )
    _add_serving(check)
    check.add_argument("--folder-file", type=Path, help=argparse.SUPPRESS)
    check.add_argument("--turn-file", type=Path, help=argparse.SUPPRESS)
    check.add_argument("--needs-file", type=Path, help=argparse.SUPPRESS)
    download = commands.add_parser("download-weights", help="fetch a checkpoint from the hub")
    _add_model(download)
    _add_parent(download)
    download.add_argument(
        "--allow-pickle", action="store_true", help="take .bin weights when there are no others"
    )
    quantize = commands.add_parser("quantize", help="not offered; says what to do instead")
    _add_model(quantize)
    quantize.add_argument("out")
    return told


def _add_serving(serve: argparse.ArgumentParser) -> None:
    _add_model(serve)
    serve.add_argument("--sharded", action=argparse.BooleanOptionalAction, default=None)
    serve.add_argument("--dtype", choices=DTYPES, default="auto")
    serve.add_argument("--device", choices=DEVICES, default="auto")
    serve.add_argument("--attention", choices=ATTENTIONS, default="auto")
    serve.add_argument("--quantize", help="not served yet")
    serve.add_argument("--speculate", type=int, default=0, help="not served yet")
    serve.add_argument("--trust-remote-code", action=argparse.BooleanOptionalAction, default=False)
    serve.add_argument("--uds-path", default=DEFAULT_UDS_PATH, help="socket; -RANK is appended")
    serve.add_argument("--listen", help="HOST:PORT instead of a socket; rank r takes PORT + r")
    serve.add_argument("--advertise-host", help="the name by which the router reaches this host")
    serve.add_argument("--kv-blocks", type=int, help="blocks of the KV pool (default: by memory)")
    serve.add_argument("--cuda-memory-fraction", type=float, default=0.9)
    serve.add_argument(
        "--watermark-gamma", type=float, default=0.5, help="share of the tokens that it favours"
    )
    serve.add_argument(
        "--watermark-delta", type=float, default=2.0, help="what it adds to their logits"
    )
    serve.add_argument(
        "--logger-level", default="INFO", type=str.upper, choices=LOG_LEVELS, metavar="LEVEL"
    )
    serve.add_argument(
        "--json-output",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="log in JSON lines",
    )
    serve.add_argument(
        "--otlp-endpoint", help="send traces to this collector, http://HOST:PORT (OTLP over gRPC)"
    )
    serve.add_argument("--otlp-service-name", default="text-generation-inference.server")
    _add_parent(serve)


def _add_parent(command: argparse.ArgumentParser) -> None:
    """The launcher's process, with which this one ends."""
    command.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_id", metavar="MODEL_ID", help="a local folder or a hub id")
    parser.add_argument("--revision", help="branch, tag or commit on the hub")
