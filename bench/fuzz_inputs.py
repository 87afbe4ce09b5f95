"""Valid inputs of every API, and the ways in which they go wrong."""

import json
import random
from typing import Any

_MESSAGES = [{"role": "user", "content": "Who are you?"}]
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_FUNCTION = {"name": "f", "description": "d", "parameters": _SCHEMA}
# A path and a body, which the bundled model answers within a few steps.
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "/generate",
        {
            "inputs": "Once there was",
            "parameters": {
                "max_new_tokens": 3, "do_sample": True, "temperature": 0.5, "top_k": 5,
                "top_p": 0.9, "typical_p": 0.9, "repetition_penalty": 1.1, "seed": 7,
                "stop": ["x"], "details": True, "decoder_input_details": True,
                "top_n_tokens": 2, "best_of": 1, "truncate": 5, "watermark": False,
                "grammar": {"type": "regex", "value": "[a-z]{1,4}"},
            },
        },
    ),
    ("/generate_stream", {"inputs": "Once", "parameters": {"max_new_tokens": 3}}),
    ("/", {"inputs": "Once", "stream": True, "parameters": {"max_new_tokens": 3}}),
    ("/tokenize", {"inputs": "Once there was", "add_special_tokens": True}),
    ("/chat_tokenize", {"model": "tgi", "messages": _MESSAGES}),
    ("/constraints/check", {"grammar": {"type": "json", "value": _SCHEMA}, "texts": ["{}"]}),
    (
        "/v1/chat/completions",
        {
            "model": "tgi", "messages": _MESSAGES, "max_tokens": 3, "temperature": 0,
            "logprobs": True, "top_logprobs": 2, "n": 1, "stop": ["x"], "stream": False,
            "logit_bias": {"5": 1}, "seed": 1, "user": "u",
            "response_format": {
                "type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}
            },
            "tools": [{"type": "function", "function": _FUNCTION}], "tool_choice": "none",
            "stream_options": {"include_usage": True}, "metadata": {"a": "b"},
        },
    ),
    (
        "/v1/completions",
        {
            "model": "tgi", "prompt": ["Once", "Then"], "max_tokens": 2, "echo": True,
            "logprobs": 1, "n": 1, "best_of": 1, "suffix": None, "stream": True,
            "structured_outputs": {"where": "len(X) < 9"},
        },
    ),
    (
        "/v1/responses",
        {
            "model": "tgi", "input": [{"role": "user", "content": "Hm"}], "max_output_tokens": 16,
            "instructions": "i", "store": False, "stream": False,
            "text": {"format": {"type": "text"}}, "tools": [{"type": "function", **_FUNCTION}],
            "reasoning": {"effort": "low"}, "include": [], "truncation": "disabled",
        },
    ),
    (
        "/v1/messages",
        {
            "model": "tgi", "max_tokens": 3, "messages": _MESSAGES, "system": "s", "top_k": 3,
            "stop_sequences": ["x"], "metadata": {"user_id": "u"},
            "tools": [{"name": "f", "input_schema": _SCHEMA}], "tool_choice": {"type": "none"},
        },
    ),
)  # fmt: skip
FRAMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("HELLO", {"stream_id": 0, "version": 2}),
    (
        "GENERATE",
        {
            "stream_id": 1, "text": "Once", "max_tokens": 3, "temperature": 0.5, "seed": 3,
            "top_logprobs": 2, "stop": ["time"], "logit_bias": {"262": 1}, "output": [1497],
            "constraint": {"type": "choice", "value": [" a", " b"]},
        },
    ),
    ("GENERATE", {"stream_id": 2, "prompt": [938, 1497], "max_tokens": 2}),
    ("GENERATE", {"stream_id": 3, "messages": _MESSAGES, "max_tokens": 2}),
    ("SCORE", {"stream_id": 4, "model": "tgi", "prompt": [302, 2872], "scored": [2075, 18]}),
    ("MODEL_INFO", {"stream_id": 5, "model": "tgi", "data": {"model": "tgi"}}),
    ("CANCEL", {"stream_id": 1}),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**64, -(2**70), 1e308, -0.0, 0.5, float("inf"),
    float("nan"), "", "a", "\0", "\ud800", "é" * 50, "{" * 40, "0", "tgi", "auto", [], [[]], [None],
    {}, {"": {}}, {"type": "text", "text": "x"}, {"type": "string", "pattern": "("}, ["a"] * 50,
    [{"role": "tool"}], {"$ref": "#"}, "<|end|>", "[" * 300, {"a": {"a": {"a": {"a": 1}}}},
)  # fmt: skip
_HEADERS = "Host: a\r\nContent-Type: application/json\r\nConnection: close\r\n"


def raw_request(path: str, body: bytes) -> bytes:
    """The bytes of a POST."""
    head = f"POST {path} HTTP/1.1\r\n{_HEADERS}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def changed_json(value: Any, draw: random.Random) -> Any:
    """A copy in which one to three values are another one, gone, or doubled under another name."""
    copy = json.loads(json.dumps(value))
    for _ in range(draw.randint(1, 3)):
        holders = list(_holders(copy))
        if not holders:
            break
        holder, key = draw.choice(holders)
        way = draw.random()
        if way < 0.15:
            del holder[key]
        elif way < 0.25 and isinstance(holder, dict):
            holder[f"{key}_"] = holder[key]
        else:
            holder[key] = json.loads(json.dumps(draw.choice(_VALUES)))
    return copy


def _holders(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a value: its dict or list, and its key or index."""
    places: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items) if isinstance(value, dict | list) else []:
        places.append((value, key))
        if isinstance(inner, dict | list):
            places += _holders(inner)
    return places


def changed_bytes(sent: bytes, draw: random.Random) -> bytes:
    """A copy in which some bytes are turned, left out, doubled, or everything behind them is."""
    copy = bytearray(sent)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        at = draw.randrange(len(copy) + 1)
        length = draw.choice((1, 1, 2, 8, 64))
        way = draw.randrange(5)
        if way == 0:
            copy[at : at + length] = draw.randbytes(length)
        elif way == 1:
            del copy[at : at + length]
        elif way == 2:
            copy[at:at] = copy[at : at + length]
        elif way == 3:
            copy[at:at] = draw.choice((b"\r\n", b"\0", b"Transfer-Encoding: chunked\r\n", b"\xff"))
        elif draw.random() < 0.2:
            del copy[at:]
    return bytes(copy)
