"""Bodies of Responses and Messages with anything anywhere: a value, or a reason why not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.anthropic import CountBody, MessagesBody
from router.http.errors import HttpError
from router.http.responses.schema import CountInputBody, ResponseBody
from router.http.schema import parse
from router.request.errors import InvalidRequest
from router.request.parameters import Limits

LIMITS = Limits(max_input_len=100, max_total_len=200, vocab_size=50)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "format", "effort", "id", "a"]),
            inner | st.sampled_from(["text", "message", "input_text", "user", "assistant"]),
            max_size=4,
        )
    ),
    max_leaves=8,
)
GOOD = {"input": "hi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def bodies(schema: Any) -> st.SearchStrategy[dict[str, Any]]:
    names = [*schema.model_fields, "unknown"]
    good = {name: value for name, value in GOOD.items() if name in schema.model_fields}
    odd = st.dictionaries(st.sampled_from(names), ODD, max_size=3)
    return odd.map(lambda fields: {**good, **fields})


def outcome(raw: bytes, schema: Any) -> str:
    """The texts of the turns, or the reason why there are none."""
    try:
        body = parse(raw, schema)
        body.check()
        if isinstance(body, ResponseBody | MessagesBody):
            body.to_raw(LIMITS)
    except (InvalidRequest, HttpError) as error:
        return str(error)
    turns = body.messages if isinstance(body, CountBody) else [item.turn for item in body.input]
    return " ".join(["turns:", *(turn.text for turn in turns)])


@pytest.mark.parametrize("schema", [ResponseBody, CountInputBody, MessagesBody, CountBody])
@given(data=st.data())
def test_every_body_is_a_value_or_a_reason_why_not(schema: Any, data: st.DataObject) -> None:
    raw = json.dumps(data.draw(bodies(schema))).encode()

    assert outcome(raw, schema)
