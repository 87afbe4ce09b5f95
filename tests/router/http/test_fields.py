"""Fields that a body may not have, or not with this value."""

from types import MappingProxyType

import orjson
import pytest

from router.http.schema import StrictSchema, parse
from router.request.errors import InvalidRequest, Unsupported


class Body(StrictSchema):
    unsupported = MappingProxyType(
        {"tools": ([],), "choice": ("auto", "none"), "image": {"size": (1,)}}
    )

    name: str | None = None


@pytest.mark.parametrize(
    "json",
    [
        b"{}",
        b'{"name": "a", "tools": [], "choice": "none", "image": {"size": 1}}',
        b'{"tools": null, "choice": null, "image": null}',
        b'{"image": {"size": null, "unknown": null}}',
    ],
)
def test_harmless_values_and_nulls_are_taken(json: bytes) -> None:
    body = parse(json, Body)
    body.refuse_unsupported()

    assert body.model_dump(exclude_unset=True) == orjson.loads(json)


@pytest.mark.parametrize(
    ("json", "field", "message"),
    [
        (b'{"tools": [1]}', "tools", "`tools` is not served yet; leave it out or say `[]`"),
        (
            b'{"choice": "any"}',
            "choice",
            '`choice` is not served yet; leave it out or say `"auto"` or `"none"`',
        ),
        (b'{"image": {"size": 2}}', "image.size", "`image.size` is not served yet; "),
        (b'{"image": {"kind": 0}}', "image.kind", "`image.kind` is not served yet; leave it out"),
    ],
)
def test_other_values_are_refused_by_name(json: bytes, field: str, message: str) -> None:
    with pytest.raises(Unsupported) as refused:
        parse(json, Body).refuse_unsupported()

    assert refused.value.field == field
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("json", "field"), [(b'{"odd": null}', "odd"), (b'{"image": 1}', "image")])
def test_what_is_no_field_or_no_object_is_no_request(json: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(json, Body).refuse_unsupported()

    assert refused.value.field == field
    assert not isinstance(refused.value, Unsupported)


def test_the_document_says_what_is_taken() -> None:
    schema = Body.model_json_schema()

    assert schema["additionalProperties"] is False
    assert schema["properties"]["choice"] == {"enum": [None, "auto", "none"]}
    assert schema["properties"]["image"] == {
        "type": ["object", "null"],
        "properties": {"size": {"enum": [None, 1]}},
        "additionalProperties": {"type": "null"},
    }
    assert schema["properties"]["name"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
