"""Several prompts of one call to their texts, in order: Vertex' instances and KServe's tensors.

One prompt that is refused or fails ends the whole call.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import Request

from router.engine.infer import Infer
from router.http.request_validator import RequestRecord, RequestValidator
from router.http.server.body import unless_disconnected
from router.http.server_info import ServerInfo, answer_headers
from router.http.tgi.schema import GenerateBody, to_raw
from router.request.errors import ConstraintRefused, InvalidRequest
from router.request.request import GenerateRequest


@dataclass(frozen=True, slots=True)
class Draw:
    """A prompt, checked. The best of `num_draws` answers counts, behind `prefix`."""

    checked: GenerateRequest
    num_draws: int = 1
    prefix: str = ""


class Batches:
    """Checks prompts and answers them all at once."""

    def __init__(self, infer: Infer, validator: RequestValidator, info: ServerInfo) -> None:
        self._infer = infer
        self._validator = validator
        self._info = info

    def check_size(self, field: str, num_prompts: int) -> None:
        """Raises InvalidRequest for more prompts than could ever run beside each other."""
        most = self._info.max_concurrent_requests
        if num_prompts > most:
            raise InvalidRequest(
                f"`{field}` must hold at most {most} prompts. Given: {num_prompts}", field
            )

    async def prepare(self, record: RequestRecord, body: GenerateBody) -> Draw:
        """The draw for one of TGI's bodies. Raises InvalidRequest."""
        checked = await self._validator.check(record, body.inputs, to_raw(body.chosen))
        return Draw(checked, body.chosen.best_of or 1, body.prefix)

    async def texts(
        self, request: Request, draws: Sequence[Draw]
    ) -> tuple[list[str], dict[str, str]]:
        """The text of each, and the timing headers. Raises the first RouterError."""
        works = self._infer.best_of_each([(draw.checked, draw.num_draws) for draw in draws])
        answers = await unless_disconnected(request, works)
        record = RequestRecord.of(request)
        for completions in answers:
            for completion in completions:
                record.finished(completion.finished)
        best = [completions[0].finished for completions in answers]
        texts = [draw.prefix + end.text for draw, end in zip(draws, best, strict=True)]
        num_generated_tokens = sum(end.num_generated_tokens for end in best)
        return texts, answer_headers(self._info, record, num_generated_tokens)


@contextmanager
def within(place: str) -> Iterator[None]:
    """Adds the place of a prompt to the errors about it."""
    try:
        yield
    except ConstraintRefused as error:
        message = f"`{place}`: {error}"  # whose last line may be a caret
        raise ConstraintRefused(message, error.reason, error.details, error.field) from error
    except InvalidRequest as error:
        raise type(error)(f"{error}, in `{place}`", error.field) from error
