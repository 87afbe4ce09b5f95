"""Every knob of the router, once: its flag, its environment name, its default, its rule.

The only file of this tier that reads the command line and the environment. A flag beats its
environment variable, which beats the default; an empty variable counts as absent. Names and
defaults are those of TGI's router where TGI has the knob. Two differ on purpose: the server binds
127.0.0.1 unless told otherwise, and HOSTNAME is not read, since shells and containers set it
to the machine's name.

It knows nothing of what the knobs do.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

LOG_LEVELS = ("debug", "info", "warning", "error")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})
_NO_KEYS = (
    "keys are not checked yet, and a server that only seems to check them is worse than none; put "
    "a proxy that does in front"
)
_NO_CORS = (
    "browsers of other origins are not served yet; put a proxy that adds the headers in front"
)
_NGROK = (
    "Tandem opens no tunnel. Run one beside it (ngrok http 3000, cloudflared tunnel, ssh -R) and "
    "point it at --port"
)

Parse = Callable[[str], Any]


class BadConfig(ValueError):
    """A flag or variable that breaks its rule; the text names it, its value and the rule."""


def _whole(low: int, high: int | None = None) -> Parse:
    rule = f"a whole number, at least {low}" + (f" and at most {high}" if high is not None else "")

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise BadConfig(f"must be {rule}") from None
        if number < low or (high is not None and number > high):
            raise BadConfig(f"must be {rule}")
        return number

    return parse


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number < 1e9:
        raise BadConfig("must be a number of seconds above 0")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadConfig("must be a number") from None


def _word(text: str) -> str:
    if not text.strip():
        raise BadConfig("must not be empty")
    return text


def _one_of(*words: str) -> Parse:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise BadConfig(f"must be one of {', '.join(words)}")
        return text.lower()

    return parse


def _switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise BadConfig("must be true or false")


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise BadConfig("must be a file that exists")
    return path


def _refused(reason: str) -> Parse:
    def parse(text: str) -> NoReturn:
        raise BadConfig(reason)

    return parse


def _no_tunnel(text: str) -> bool:
    if _switch(text):
        raise BadConfig(_NGROK)
    return False


def _knob(
    default: Any,
    help: str,
    parse: Parse = _word,
    *,
    group: str,
    env: bool = True,
    aliases: tuple[str, ...] = (),
    kind: str = "value",
) -> Any:
    """A knob, declared as a field of RouterConfig.

    With `env` its variable is the flag's name in capitals. `kind` is "value" or "switch", a
    flag without a value. `aliases` are older names.
    """
    knob = {
        "help": help,
        "parse": _switch if kind == "switch" and parse is _word else parse,
        "group": group,
        "env": env,
        "aliases": aliases,
        "kind": kind,
    }
    return field(default=default, metadata=knob)


_TIERS = "the model and the shards"
_HTTP = "HTTP"
_LIMITS = "limits of one request"
_STEPS = "limits of all requests"
_TIME = "time"
_LOGS = "logs and telemetry"
_INERT = "accepted for TGI's sake, without effect"
_REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """What `python -m router` was told. Lengths in tokens, `_s` in seconds.

    Raises BadConfig when knobs contradict each other.
    """

    tokenizer_name: str | None = _knob(
        None,
        "folder or hub id of the tokenizer; absent: the model id that the shard reports. For the "
        "hub HF_HOME, HF_HUB_CACHE and HF_TOKEN are honoured",
        group=_TIERS,
    )
    tokenizer_config_path: Path | None = _knob(  # noqa: RUF009 (a dataclass field, by our name)
        None,
        "another tokenizer_config.json, for its chat template",
        _file,
        group=_TIERS,
    )
    revision: str | None = _knob(
        None, "branch, tag or commit of a tokenizer from the hub", group=_TIERS
    )
    served_model_name: str | None = _knob(
        None,
        "the model's name in answers, /info and /v1/models; absent: --tokenizer-name",
        group=_TIERS,
    )
    master_shard_uds_path: str = _knob(
        str(Path(tempfile.gettempdir(), "text-generation-server-0")),
        "rank 0's Unix socket, or host:port; it names the other ranks",
        group=_TIERS,
    )
    prefix_caching: bool = _knob(
        True,
        "keep the KV blocks of past prompts and answers for requests that begin alike",
        _switch,
        group=_TIERS,
    )

    hostname: str = _knob(
        "127.0.0.1",
        "address to bind; 0.0.0.0 for every interface",
        group=_HTTP,
        env=False,
    )
    port: int = _knob(
        3000, "port to bind; 0 takes a free one and logs it", _whole(0, 65535), group=_HTTP
    )
    payload_limit: int = _knob(
        2_000_000, "bytes of a request's body, at most", _whole(1), group=_HTTP
    )
    compute_type: str | None = _knob(
        None,
        "value of the x-compute-type response header; absent: cpu or gpu+optimized, as the shard "
        "computes",
        group=_HTTP,
    )

    max_input_tokens: int | None = _knob(
        None,
        "longest prompt; absent: --max-total-tokens less one",
        _whole(1),
        group=_LIMITS,
        aliases=("max_input_length",),
    )
    max_total_tokens: int | None = _knob(
        None,
        "longest prompt and answer together; absent: what the model and the KV cache hold",
        _whole(2),
        group=_LIMITS,
    )
    max_best_of: int = _knob(2, "largest best_of", _whole(1), group=_LIMITS)
    max_stop_sequences: int = _knob(4, "most stop strings", _whole(0), group=_LIMITS)
    max_top_n_tokens: int = _knob(5, "largest top_n_tokens", _whole(0), group=_LIMITS)
    max_client_batch_size: int = _knob(
        4, "most prompts of one /v1/completions call", _whole(1), group=_LIMITS
    )

    max_request_duration: float | None = _knob(
        None,
        "seconds from a request's arrival after which it ends with the text so far and the finish "
        "reason deadline; absent: never",
        _seconds,
        group=_LIMITS,
    )

    max_concurrent_requests: int = _knob(
        128, "sequences waiting and running; more are answered 429", _whole(1), group=_STEPS
    )
    max_batch_prefill_tokens: int = _knob(
        4096, "tokens of one step, prompt chunks and decodes together", _whole(1), group=_STEPS
    )
    max_batch_size: int | None = _knob(
        None,
        "sequences that run at once; absent: --max-concurrent-requests, or the tokens of a "
        "step if they are fewer",
        _whole(1),
        group=_STEPS,
    )
    validation_workers: int = _knob(
        2, "threads that tokenize long prompts", _whole(1, 256), group=_STEPS
    )

    graceful_termination_timeout: float = _knob(
        90.0, "seconds that running requests get after the first signal", _seconds, group=_TIME
    )
    parent_pid: int | None = _knob(
        None,
        "drain and stop once this process is no longer the parent",
        _whole(1),
        group=_TIME,
        env=False,
    )
    shard_connect_timeout: float = _knob(
        60.0, "seconds to wait for the shards at start", _seconds, group=_TIME
    )
    shard_warmup_timeout: float = _knob(
        1800.0, "seconds that a shard may take to warm up", _seconds, group=_TIME
    )
    shard_step_timeout: float = _knob(
        120.0, "seconds after which a step counts as failed", _seconds, group=_TIME
    )

    log_level: str = _knob("info", "least severe lines to log", _one_of(*LOG_LEVELS), group=_LOGS)
    json_output: bool = _knob(False, "log JSON lines", group=_LOGS, kind="switch")

    otlp_endpoint: str | None = _knob(
        None, "traces are not exported yet; a warning says so", group=_INERT
    )
    otlp_service_name: str = _knob(
        "text-generation-inference.router", "see --otlp-endpoint", group=_INERT
    )
    waiting_served_ratio: float = _knob(
        1.2,
        "prompts and decodes share each step, so nothing waits for a ratio",
        _number,
        group=_INERT,
    )
    max_waiting_tokens: int = _knob(20, "see --waiting-served-ratio", _whole(0), group=_INERT)
    max_batch_total_tokens: int | None = _knob(
        None, "the KV cache is sized by the shards (their --kv-blocks)", _whole(1), group=_INERT
    )
    disable_grammar_support: bool = _knob(
        False, "no grammar is served yet", group=_INERT, kind="switch"
    )
    messages_api_enabled: bool = _knob(
        False, "/v1/chat/completions is always on", group=_INERT, kind="switch"
    )
    enable_prefill_logprobs: bool = _knob(
        False, "prompt log-probabilities are always available", group=_INERT, kind="switch"
    )
    prometheus_port: int = _knob(
        9000, "/metrics is on the main port", _whole(0, 65535), group=_INERT
    )
    max_image_fetch_size: int = _knob(
        1_073_741_824, "no model with images is served yet", _whole(0), group=_INERT
    )
    usage_stats: str = _knob(
        "off", "Tandem sends nothing home", _one_of("on", "off", "no-stack"), group=_INERT
    )

    api_key: None = _knob(None, _NO_KEYS, _refused(_NO_KEYS), group=_REFUSED)
    cors_allow_origin: None = _knob(None, _NO_CORS, _refused(_NO_CORS), group=_REFUSED)
    ngrok: bool = _knob(False, _NGROK, _no_tunnel, group=_REFUSED, kind="switch")
    # The variables of these two may well be set for ngrok's own client.
    ngrok_authtoken: None = _knob(None, "see --ngrok", _refused(_NGROK), group=_REFUSED, env=False)
    ngrok_edge: None = _knob(None, "see --ngrok", _refused(_NGROK), group=_REFUSED, env=False)

    def __post_init__(self) -> None:
        total, prompt = self.max_total_tokens, self.max_input_tokens
        if total is not None and prompt is not None and prompt >= total:
            raise BadConfig(
                f"--max-input-tokens {prompt}: must be below --max-total-tokens {total}, so that "
                "a longest prompt can have an answer"
            )
        if self.max_batch_size is not None and self.max_batch_size > self.max_batch_prefill_tokens:
            raise BadConfig(
                f"--max-batch-size {self.max_batch_size}: must not exceed "
                f"--max-batch-prefill-tokens {self.max_batch_prefill_tokens}, since each running "
                "sequence takes a token of the step"
            )

    @property
    def batch_size(self) -> int:
        """Sequences that run at once."""
        if self.max_batch_size is not None:
            return self.max_batch_size
        return min(self.max_concurrent_requests, self.max_batch_prefill_tokens)


def read_config(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> RouterConfig:
    """The configuration of a command line (without the program's name) and an environment.

    Raises BadConfig. `--help` prints to stdout and raises SystemExit(0).
    """
    environ = os.environ if environ is None else environ
    told = vars(_parser().parse_args(argv))
    values: dict[str, Any] = {}
    for knob in fields(RouterConfig):
        parse: Parse = knob.metadata["parse"]
        for source, text in _sources(knob.name, knob.metadata, told, environ):
            try:
                values[knob.name] = parse(text)
            except BadConfig as error:
                raise BadConfig(f"{source} {text!r}: {error}") from None
            break
    return RouterConfig(**values)


def _sources(
    name: str, knob: Mapping[str, Any], told: Mapping[str, Any], environ: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Where the knob was set, the strongest first: (flag or variable, text)."""
    found = []
    for spelling in (name, *knob["aliases"]):
        if told[spelling] is not None:
            found.append((_flag(spelling), told[spelling]))
    for spelling in (name, *knob["aliases"]):
        variable = spelling.upper()
        if knob["env"] and environ.get(variable):
            found.append((variable, environ[variable]))
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadConfig(f"{message}; see --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m router",
        usage="python -m router [--flag VALUE] ...",
        description="Tandem's router: HTTP in front, shards behind. Every flag but --hostname, "
        "--parent-pid and --ngrok-* can be given as a variable too: in capitals, with underscores.",
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for knob in fields(RouterConfig):
        meta = knob.metadata
        group = groups.get(meta["group"]) or parser.add_argument_group(meta["group"])
        groups[meta["group"]] = group
        shown = "" if knob.default in (None, (), False) else f" (default {knob.default})"
        options: dict[str, Any] = {"dest": knob.name, "help": (meta["help"] + shown)}
        if meta["kind"] == "switch":
            options |= {"action": "store_const", "const": "true"}
        else:
            options |= {"metavar": "VALUE"}
        group.add_argument(_flag(knob.name), **options)
        for alias in meta["aliases"]:
            options |= {"dest": alias, "help": f"older name of {_flag(knob.name)}"}
            group.add_argument(_flag(alias), **options)
    return parser
