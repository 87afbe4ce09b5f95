"""Forms that come in any pieces."""

from collections.abc import AsyncIterator

import pytest

from router.http.batches.form import read_form
from router.http.errors import HttpError

KIND = "multipart/form-data; boundary=b0"
FORM = (
    b'--b0\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b0\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n'
    b"Content-Type: application/jsonl\r\n\r\none\r\n--b\r\ntwo\n\r\n"
    b'--b0\r\nContent-Disposition: form-data; name="empty"\r\n\r\n\r\n--b0--\r\n'
)
FIELDS = {
    ("purpose", ""): b"batch",
    ("file", "in.jsonl"): b"one\r\n--b\r\ntwo\n",
    ("empty", ""): b"",
}


async def chunked(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]
    yield b""


async def fields_of(body: bytes, size: int, kind: str = KIND) -> dict[tuple[str, str], bytes]:
    found: dict[tuple[str, str], bytes] = {}
    async for name, filename, content in read_form(kind, chunked(body, size)):
        found[name, filename] = found.get((name, filename), b"") + content
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 1000])
async def test_a_form_is_the_same_in_whatever_pieces_it_comes(size: int) -> None:
    assert await fields_of(FORM, size) == FIELDS
    quoted = 'Multipart/Form-Data; charset=utf-8; boundary="b0"'
    assert await fields_of(b"preamble\r\n" + FORM + b"epilogue", size, quoted) == FIELDS


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (FORM, "application/json", 415),
        (FORM, "multipart/form-data", 415),
        (FORM[:-6], KIND, 400),
        (FORM.replace(b'name="file"; ', b""), KIND, 400),
        (b"no form at all", KIND, 400),
        (b"--b0\r\n" + b"x" * 20_000, KIND, 400),
        (b"", KIND, 400),
    ],
    ids=["json", "no boundary", "cut", "no name", "no mark", "long head", "empty"],
)
async def test_what_is_no_form_is_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(HttpError) as refused:
        await fields_of(body, 50, kind)
    assert refused.value.status == status
