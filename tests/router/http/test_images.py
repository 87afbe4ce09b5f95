"""Images in bodies: the parts of every API, their order, and what is refused before any is read."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from processes.instruments import Gauge
from router.http.anthropic import CountBody
from router.http.conversation import ChatPrompt
from router.http.images import ImageReader, ImageSource, joined, markdown_images
from router.http.openai.schema import ChatBody
from router.http.request_record import RequestRecord
from router.http.responses.schema import CountInputBody, turns_of
from router.images.fetching import ImageFetcher
from router.images.memory import ImageFile, ImageMemory
from router.request.errors import InvalidRequest
from router.request.images import PreparedImage
from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.rig import routing

URL = "data:image/png;base64,AAAA"
OTHER = "https://example.com/a.png"
SEEN = {"type": "image"}
CHAT = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
INPUT = {"type": "input_image", "image_url": URL, "detail": "auto"}
BLOCK = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}


def text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def chat(*messages: Any) -> ChatPrompt:
    return ChatBody.model_validate({"messages": [*messages]}).chat_prompt


def anthropic(*messages: Any) -> ChatPrompt:
    return CountBody.model_validate({"messages": [*messages]}).chat_prompt


def responses(*items: Any) -> ChatPrompt:
    body = CountInputBody.model_validate({"input": [*items]})
    return body.chat_prompt(turns_of(body.input))  # type: ignore[arg-type]


def test_a_chats_texts_and_images_keep_their_order() -> None:
    bare = {"type": "image_url", "image_url": OTHER}
    prompt = chat(
        {"role": "user", "content": [text("a"), text("b"), CHAT, text("c"), bare]},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": [CHAT]},
    )

    assert [message["content"] for message in prompt.messages] == [
        [text("ab"), SEEN, text("c"), SEEN],
        "d",
        [SEEN],
    ]
    assert prompt.images == (
        ImageSource(URL, "messages[0].content[2].image_url.url"),
        ImageSource(OTHER, "messages[0].content[4].image_url"),
        ImageSource(URL, "messages[2].content[0].image_url.url"),
    )


def test_an_input_may_have_images_in_messages_and_in_outputs_of_functions() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = {"type": "input_text", "text": "a"}
    prompt = responses(
        {"role": "user", "content": [INPUT, said]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": [said, INPUT]},
    )

    assert [message["content"] for message in prompt.messages] == [
        [SEEN, text("a")],
        None,
        [text("a"), SEEN],
    ]
    assert prompt.images == (
        ImageSource(URL, "input[0].content[0].image_url"),
        ImageSource(URL, "input[2].output[1].image_url"),
    )


def test_a_message_may_have_images_of_base64_and_urls_and_in_results_of_tools() -> None:
    linked = {"type": "image", "source": {"type": "url", "url": OTHER}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [linked, text("b")]}
    prompt = anthropic(
        {"role": "user", "content": [text("a"), BLOCK]},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
        },
        {"role": "user", "content": [result, BLOCK]},
    )

    assert [message["content"] for message in prompt.messages] == [
        [text("a"), SEEN, text("\n\nc")],
        None,
        [SEEN, text("b")],
        [SEEN],
    ]
    assert prompt.images == (
        ImageSource(URL, "messages[0].content[1].source.data"),
        ImageSource(OTHER, "messages[3].content[0].content[0].source.url"),
        ImageSource(URL, "messages[3].content[1].source.data"),
    )


def test_neighbouring_texts_are_one() -> None:
    image = ImageSource(URL, "a")

    assert joined(["a", "", "b"]) == "ab"
    assert joined(["", image, "a", "b"]) == (image, "ab")
    assert joined([]) == ""


def test_tgis_images_stand_in_the_text_of_a_prompt() -> None:
    inputs = f"a ![]({URL})![]({OTHER}) b ![alt]({URL}) ![]("

    assert markdown_images(inputs, "<image>") == (
        f"a <image><image> b ![alt]({URL}) ![](",
        (ImageSource(URL, "inputs"), ImageSource(OTHER, "inputs")),
    )
    assert markdown_images("![", "<image>") == ("![", ())


def test_an_image_of_tgis_with_another_url_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="`inputs` must be a data:, http: or https: URL"):
        markdown_images("see ![](cat.png)", "<image>")


BROKEN: list[tuple[str, Any, str]] = [
    ("/v1/chat/completions", {**CHAT, "image_url": {"url": 5}}, "image_url.url"),
    ("/v1/chat/completions", {"type": "image_url"}, "image_url"),
    ("/v1/chat/completions", {**CHAT, "image_url": "file:///etc/passwd"}, "image_url"),
    (
        "/v1/chat/completions",
        {**CHAT, "image_url": {"url": URL, "detail": "full"}},
        "image_url.detail",
    ),
    ("/v1/responses", {**INPUT, "detail": "full"}, "detail"),
    ("/v1/responses", {**INPUT, "image_url": None}, "image_url"),
    ("/v1/messages", {"type": "image"}, "source"),
    ("/v1/messages", {"type": "image", "source": {"type": "url"}}, "source.url"),
    (
        "/v1/messages",
        {"type": "image", "source": {"type": "base64", "media_type": "a", "data": ""}},
        "source.media_type",
    ),
    (
        "/v1/messages",
        {"type": "image", "source": {"type": "base64", "media_type": "image/png"}},
        "source.data",
    ),
]


def body_of(path: str, *parts: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": list(parts)}]
    return {"input" if path == "/v1/responses" else "messages": turns, "max_tokens": 3}


async def test_a_part_that_is_no_image_is_refused_by_its_place() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for path, part, field in BROKEN:
            answer = await client.post(path, json=body_of(path, part))
            turn = "input" if path == "/v1/responses" else "messages"
            assert answer.status_code == 400
            assert f"`{turn}[0].content[0].{field}`" in answer.json()["error"]["message"]


async def test_an_image_by_the_id_of_a_file_is_not_served() -> None:
    sources = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    async with housing(FakeShard()) as house, house.client as client:
        for path, part in (
            ("/v1/responses", {"type": "input_image", "file_id": "f"}),
            ("/v1/messages", sources),
        ):
            answer = await client.post(path, json=body_of(path, part))
            assert "is not served" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "part", "place"),
    [
        ("/v1/chat/completions", CHAT, "messages[0].content[0].image_url.url"),
        ("/v1/responses", INPUT, "input[0].content[0].image_url"),
        ("/v1/messages", BLOCK, "messages[0].content[0].source.data"),
        ("/v1/messages/count_tokens", BLOCK, "messages[0].content[0].source.data"),
    ],
)
async def test_a_model_that_does_not_see_says_why(path: str, part: Any, place: str) -> None:
    reason = "the processor needs torchvision"
    async with housing(FakeShard(), blind_reason=reason) as house, house.client as client:
        body = body_of(path, part)
        if path != "/v1/messages":
            del body["max_tokens"]
        answer = await client.post(path, json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(
        f"`{place}` is an image, and this model reads text alone: {reason}"
    )


SPAN = PreparedImage(bytes(16), (7, 9, 7), {})


class Preparing:
    """Makes the same of every file; of none of it if it hangs."""

    def __init__(self, *, hangs: bool = False) -> None:
        self._hangs = hangs
        self.num_asked = 0

    async def prepare(self, _: ImageFile) -> PreparedImage:
        self.num_asked += 1
        if self._hangs:
            await asyncio.Event().wait()
        return SPAN


@asynccontextmanager
async def reading(
    memory: ImageMemory, preparing: Preparing
) -> AsyncIterator[tuple[ImageReader, RequestRecord]]:
    async with routing(FakeShard()) as rig:
        fetcher = ImageFetcher(1000, memory)
        reader = ImageReader(
            fetcher.fetch, preparing.prepare, rig.infer, rig.metrics, "<image>", max_images=16
        )
        yield reader, RequestRecord("a", 0.0)


def memory_of(max_bytes: int) -> ImageMemory:
    return ImageMemory(max_bytes, Gauge("bytes", "of images"))


async def test_a_request_reads_few_images_at_once_so_that_others_have_turns() -> None:
    preparing = Preparing(hangs=True)
    async with reading(memory_of(1000), preparing) as (reader, record):
        sources = [ImageSource(f"{URL}{n:04}", f"at[{n}]") for n in range(16)]
        task = asyncio.create_task(reader.read(record, sources))
        for _ in range(50):
            await asyncio.sleep(0)
        assert preparing.num_asked == 4
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_image_is_read_once_in_a_request() -> None:
    preparing = Preparing()
    async with reading(memory_of(1000), preparing) as (reader, record):
        sources = [ImageSource(URL, "at[0]"), ImageSource(URL, "at[1]")]
        assert await reader.read(record, sources) == (SPAN, SPAN)
        assert await reader.read(record, sources[:1]) == (SPAN,)
    assert preparing.num_asked == 1


async def test_files_beside_one_that_is_refused_take_no_memory() -> None:
    """At once: what is held until a collection would be told as a server without room."""
    memory = memory_of(1000)
    async with reading(memory, Preparing()) as (reader, record):
        sources = [ImageSource(URL, "at[0]"), ImageSource("data:image/png,*", "at[1]")]
        gc.disable()
        try:
            with pytest.raises(InvalidRequest, match=r"`at\[1\]` must be like data:"):
                await reader.read(record, sources)
            # The loop holds what it has just done.
            await asyncio.sleep(0)
            assert memory.num_bytes == 0
        finally:
            gc.enable()
