"""Images in bodies: the parts that name them, in every API, and what is made of them.

    part -> ImageSource -> ... parameters and limits are checked ... -> ImageReader -> PreparedImage

A part of a message is a text or an image; the chat template sees an image's place alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from router.engine.infer import Infer
from router.http.request_record import RequestRecord
from router.images.memory import ImageFile
from router.request.errors import InvalidRequest, Unsupported, wrong
from router.request.images import ImageRefused, PreparedImage
from router.telemetry.metrics import Metrics

_SCHEMES = ("data:", "http://", "https://")
# OpenAI's words. They change nothing: the model's processor decides on resolutions.
_DETAILS = ("auto", "low", "high")
_BEGIN = "![]("
# Images of a request at the same time: its hosts may be slow, and others wait.
_MAX_READING = 4
URL_SCHEMA: dict[str, Any] = {"type": "string"}


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image of a message. `place` is the field that names it."""

    url: str = field(repr=False)
    place: str


Part = str | ImageSource
# The file of a URL, and what is made of it. Both raise ImageRefused and Refused.
Fetch = Callable[[str], Awaitable[ImageFile]]
Prepare = Callable[[ImageFile], Awaitable[PreparedImage]]


def image_at(url: Any, place: str) -> ImageSource:
    """The image of a URL. Raises InvalidRequest."""
    if not isinstance(url, str) or not url[:8].lower().startswith(_SCHEMES):
        raise wrong(place, "must be a data:, http: or https: URL", url)
    return ImageSource(url, place)


def check_detail(value: Any, place: str) -> None:
    """Raises InvalidRequest for what is no `detail` of OpenAI's."""
    if value is not None and value not in _DETAILS:
        raise wrong(f"{place}.detail", "must be `auto`, `low` or `high`", value)


def chat_image(part: Mapping[str, Any], place: str) -> ImageSource:
    """OpenAI's `image_url`: an object with `url`, or the URL itself."""
    place = f"{place}.image_url"
    given = part.get("image_url")
    if isinstance(given, Mapping):
        check_detail(given.get("detail"), place)
        return image_at(given.get("url"), f"{place}.url")
    return image_at(given, place)


def file_image(part: Mapping[str, Any], place: str) -> ImageSource:
    """Responses' `input_image`. Raises InvalidRequest, and Unsupported for a file's id."""
    check_detail(part.get("detail"), place)
    if part.get("file_id") is not None:
        rule = "is not served: an image comes by its `image_url`"
        raise Unsupported(f"`{place}.file_id` {rule}", f"{place}.file_id")
    return image_at(part.get("image_url"), f"{place}.image_url")


def block_image(block: Mapping[str, Any], place: str) -> ImageSource:
    """Anthropic's `image`, whose source is base64 or a URL. Raises as `file_image`."""
    place = f"{place}.source"
    source = block.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    if not isinstance(source, Mapping) or kind not in ("base64", "url", "file"):
        rule = 'must be like {"type": "base64", "media_type": "image/png", "data": ...} or '
        raise wrong(place, rule + '{"type": "url", "url": ...}', source)
    if kind == "file":
        rule = "is of type `file`, which is not served: send `base64` or a `url`"
        raise Unsupported(f"`{place}` {rule}", place)
    if kind == "url":
        return image_at(source.get("url"), f"{place}.url")
    media_type = source.get("media_type")
    data = source.get("data")
    if not isinstance(media_type, str) or not media_type.startswith("image/"):
        raise wrong(f"{place}.media_type", "must be that of an image", media_type)
    if not isinstance(data, str):
        raise wrong(f"{place}.data", "must be a string", data)
    return ImageSource(f"data:{media_type};base64,{data}", f"{place}.data")


def joined(parts: Iterable[Part]) -> str | tuple[Part, ...]:
    """Parts with neighbouring texts as one; a text where there are no images."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    if not images_of(found):
        return text_of(found)
    return tuple(found)


def shown_content(parts: Iterable[Part]) -> str | list[dict[str, Any]]:
    """Parts as chat templates have them: one text, or in order what is text and what is not."""
    content = joined(parts)
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
        for part in content
    ]


def images_of(parts: Iterable[Part]) -> tuple[ImageSource, ...]:
    return tuple(part for part in parts if isinstance(part, ImageSource))


def text_of(parts: Iterable[Part]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def kept_texts(parts: Iterable[Part]) -> tuple[str, ...]:
    """What a server that remembers the parts keeps of them."""
    return tuple(part if isinstance(part, str) else part.url for part in parts)


def markdown_images(inputs: str, marker: str) -> tuple[str, tuple[ImageSource, ...]]:
    """A prompt of TGI's with a `marker` for each `![](URL)`, and the images.

    Raises InvalidRequest for one of another URL, as TGI does.
    """
    pieces: list[str] = []
    images: list[ImageSource] = []
    begin = 0
    while True:
        start = inputs.find(_BEGIN, begin)
        stop = inputs.find(")", start + len(_BEGIN)) if start >= 0 else -1
        if stop < 0:
            break
        images.append(image_at(inputs[start + len(_BEGIN) : stop], "inputs"))
        pieces += [inputs[begin:start], marker]
        begin = stop + 1
    return "".join([*pieces, inputs[begin:]]), tuple(images)


class ImageReader:
    """Reads the images of requests, at most `max_images` of each.

    `marker` stands for each in a prompt's text.
    """

    def __init__(
        self,
        fetch: Fetch,
        prepare: Prepare,
        infer: Infer,
        metrics: Metrics,
        marker: str,
        *,
        max_images: int,
    ) -> None:
        self.marker = marker
        self._fetch = fetch
        self._prepare = prepare
        self._infer = infer
        self._metrics = metrics
        self._max_images = max_images

    async def read(
        self, record: RequestRecord, sources: Sequence[ImageSource]
    ) -> tuple[PreparedImage, ...]:
        """What stands for them, in order; each is read once in a request.

        The request's parameters have been checked: a client must not make us fetch for nothing.
        Raises InvalidRequest, and Refused where the request's key has had its due, or there is no
        room for them.
        """
        if len(sources) > self._max_images:
            place = sources[self._max_images].place
            rule = f"is image {self._max_images + 1} of the request; it may have {self._max_images}"
            raise InvalidRequest(f"`{place}` {rule} (--max-images)", place)
        self._infer.check_admitted(record.key)
        known = record.images
        turns = asyncio.Semaphore(_MAX_READING)
        unread = {source.url: source for source in sources if source.url not in known}
        reading = [asyncio.create_task(self._read(each, turns)) for each in unread.values()]
        try:
            known.update(zip(unread, await asyncio.gather(*reading), strict=True))
        finally:
            for task in reading:
                task.cancel()
            # One that failed has a traceback, which keeps this frame, and so would what the others
            # have made stay.
            reading.clear()
        return tuple(known[source.url] for source in sources)

    async def _read(self, source: ImageSource, turns: asyncio.Semaphore) -> PreparedImage:
        async with turns:
            try:
                prepared = await self._prepare(await self._fetch(source.url))
            except ImageRefused as error:
                self._metrics.images.inc("refused")
                raise InvalidRequest(f"`{source.place}` {error}", source.place) from error
            self._metrics.images.inc("taken")
            return prepared
