"""The rules that the text of a setting must pass, each with the value that it stands for.

All of them raise BadConfig with the rule, in words that follow the setting and its value.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from processes.settings import BadConfig, Group, Rule, setting


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int
    high: int | None = None

    def __call__(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise self._broken() from None
        if number < self.low or (self.high is not None and number > self.high):
            raise self._broken()
        return number

    def _broken(self) -> BadConfig:
        most = "" if self.high is None else f" and at most {self.high}"
        return BadConfig(f"must be a whole number, at least {self.low}{most}")


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadConfig("must be a number") from None


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number < 1e9:
        raise BadConfig("must be a number of seconds above 0")
    return number


def share(text: str) -> float:
    share = number(text)
    if not 0.0 < share <= 1.0:
        raise BadConfig("must be above 0 and at most 1")
    return share


def one_of(*words: str) -> Rule:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise BadConfig(f"must be one of {', '.join(words)}")
        return text.lower()

    return parse


def collector(text: str) -> str:
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme not in ("http", "https") or not url.hostname or not port or url.path.strip("/"):
        raise BadConfig(
            "must be http://HOST:PORT or https://HOST:PORT, without a path: it is OTLP over gRPC, "
            "commonly at port 4317"
        )
    return text


def lora_adapters(text: str) -> tuple[tuple[str, str], ...]:
    """Names with their paths, as TGI has them."""
    found: dict[str, str] = {}
    for word in text.split(","):
        name, equals, path = word.strip().partition("=")
        if not name or (equals and not path) or "=" in path:
            raise BadConfig("must be of adapters between commas, each NAME=PATH, or PATH alone")
        if name in found:
            raise BadConfig(f"must name each adapter once; {name} is there twice")
        found[name] = path or name
    return tuple(found.items())


def file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise BadConfig("must be a file that exists")
    return path


def token(text: str) -> str:
    """A secret that travels in a header."""
    if len(text) < 16 or not all("!" <= letter <= "~" for letter in text):
        raise BadConfig("must be at least 16 visible ASCII characters, without spaces")
    return text


# The sampling parameters that makers of models recommend and operators set for requests that leave
# them out: the least and the largest value, as OpenAI's and vLLM's requests.
_SAMPLING = {
    "temperature": (0.0, float("inf")),
    "top_p": (0.0, 1.0),
    "top_k": (-1.0, float("inf")),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, float("inf")),
}


def sampling_defaults(values: Mapping[str, Any]) -> dict[str, float]:
    """Those of `values` that are sampling parameters, in the order above; null counts as absent."""
    found: dict[str, float] = {}
    for name, (least, most) in _SAMPLING.items():
        value = values.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (name == "top_k" and value % 1):
            raise BadConfig(f"{name} {value!r}: no request could have this value")
        found[name] = float(value)
    return found


def sampling_parameters(text: str) -> Mapping[str, float]:
    """A JSON object of nothing but sampling parameters."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not values.keys() <= _SAMPLING.keys():
        raise BadConfig(f"must be a JSON object of {', '.join(_SAMPLING)}")
    return sampling_defaults(values)


# The settings of the longest request, which router and shards have in common: the router keeps
# requests within them; a shard refuses, before it reads weights, what its model cannot hold.


def max_input_tokens() -> Any:
    return setting(
        None,
        "longest prompt; absent: --max-total-tokens less one",
        Whole(1),
        group=Group.REQUEST,
        aliases=("max_input_length",),
    )


def max_total_tokens() -> Any:
    return setting(
        None,
        "longest prompt and answer together; absent: what the model and the KV cache hold",
        Whole(2),
        group=Group.REQUEST,
        elsewhere=("max_model_len", "ctx_size"),
    )
