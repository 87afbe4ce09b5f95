"""Images that shards look at beside their steps, before the requests that have them enter one.

A tower may take seconds for an image. Where a step waited for it, so would all requests that run.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from proto.contract import Image
from router.engine.observer import StepObserver
from router.shards.shards import Shards

# Of the images that were looked at last, and that shards may still know.
_MAX_KNOWN = 64


class Looking:
    """Requests with the same image wait for it together.

    A shard that has forgotten an image, or did not look at it, does so in the image's step.
    """

    def __init__(self, shards: Shards, observer: StepObserver) -> None:
        self._shards = shards
        self._observer = observer
        self._looks: dict[bytes, asyncio.Task[None]] = {}
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def is_done(self, images: Sequence[Image]) -> bool:
        """Whether there is nothing to wait for."""
        return all(image.digest in self._known for image in images)

    def forget(self) -> None:
        """The shards were reset, and may know none."""
        self._known.clear()

    async def done(self, images: Sequence[Image], prompt_ids: Sequence[int]) -> None:
        """Until the shards have looked at each of them, one after the other."""
        for image in images:
            if image.digest in self._known:
                continue
            look = self._looks.get(image.digest)
            if look is None:
                span_ids = prompt_ids[image.start : image.stop]
                look = asyncio.create_task(self._look(image, span_ids))
                self._looks[image.digest] = look
            # Another request may wait for it, too.
            await asyncio.shield(look)

    async def _look(self, image: Image, span_ids: Sequence[int]) -> None:
        try:
            looked_s = await self._shards.look_ahead(image, span_ids)
        finally:
            del self._looks[image.digest]
        if looked_s:
            self._observer.looked(looked_s)
        self._known[image.digest] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
