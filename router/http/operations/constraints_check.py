"""/constraints/check: whether texts satisfy a grammar, without generating any."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from constraints.results import Judgement, JudgeResult
from constraints.spec import ConstraintSpec
from router.engine.validation import Limits
from router.http.fields import Grammar
from router.http.schema import AnswerModel, Schema
from router.http.schema_reader import SchemaReader
from router.http.server.access import AccessRecord
from router.http.server.body import json_response, unless_disconnected
from router.http.server.docs import ApiRoute, RouteDocs
from router.request.errors import ConstraintRefused, InvalidRequest
from router.request.request import NO_KEY, ApiKey

_MAX_TEXTS = 256
_FAILURES = {429: "Too many constraints wait to be compiled"}


class ConstraintCheckBody(Schema):
    """A grammar as /generate takes it, and texts to judge: `text`, `texts`, or none."""

    names_unknown = True
    known_fields = frozenset({"model"})

    grammar: Grammar
    text: str | None = None
    texts: list[str] | None = Field(default=None, max_length=_MAX_TEXTS)


class JudgedText(AnswerModel):
    """One text. `position`: characters of it that can stand, null where it is accepted.
    `expected`: what may follow there. `error`: why it could not be checked to its end."""

    text: str
    accepted: bool
    position: int | None
    expected: list[str]
    num_legal_tokens: int
    error: str | None = None


class ConstraintCheckResponse(AnswerModel):
    """A grammar that can be kept. `shortest`: the shortest text that was found under it.
    `not_enforced`: JSON Pointers of what `lenient` leaves out. `dropped_phrases`: what ends an
    output and is cut off it."""

    shortest: str | None
    shortest_tokens: int | None
    not_enforced: list[str]
    dropped_phrases: list[str]
    results: list[JudgedText]


class Judges(Protocol):
    """Judges texts; see `ConstraintCheck`."""

    async def judge(
        self, spec: ConstraintSpec, texts: Sequence[str], client: ApiKey = NO_KEY
    ) -> JudgeResult:
        """Judge each text under a constraint.

        Raises ConstraintRefused, Overloaded, RateLimited, Unsupported.
        """


class ConstraintRoutes:
    """The handler, over what it needs. `judges` is None where nothing is compiled."""

    def __init__(self, judges: Judges | None, bodies: SchemaReader, limits: Limits) -> None:
        self._judges = judges
        self._bodies = bodies
        self._limits = limits

    def routes(self) -> list[ApiRoute]:
        """The route, documented."""
        docs = RouteDocs(
            tag="Tandem",
            body=ConstraintCheckBody,
            answer=ConstraintCheckResponse,
            failures=_FAILURES,
        )
        return [ApiRoute("POST", "/constraints/check", self.check, docs, "check_constraint")]

    async def check(self, request: Request) -> Response:
        """Judge texts by a grammar: accepted, or where and why not."""
        body = await self._bodies.read(request, ConstraintCheckBody)
        if body.text is not None and body.texts is not None:
            raise InvalidRequest("`text` and `texts` exclude each other", "texts")
        texts = body.texts or ([] if body.text is None else [body.text])
        constraint = body.grammar.constraint("grammar")
        if self._judges is None or not self._limits.takes_grammars:
            raise InvalidRequest("grammar is not supported", "grammar")
        try:
            key = AccessRecord.of(request).key
            judging = self._judges.judge(constraint.spec, texts, key)
            judged = await unless_disconnected(request, judging)
        except ConstraintRefused as error:
            message = f"`grammar`: {error}"
            raise ConstraintRefused(message, error.reason, error.details, "grammar") from error
        return json_response(_answer(texts, judged))


def _answer(texts: list[str], judged: JudgeResult) -> dict[str, object]:
    return {
        "shortest": judged.shortest,
        "shortest_tokens": judged.min_len,
        "not_enforced": list(judged.not_enforced),
        "dropped_phrases": list(judged.dropped_phrases),
        "results": [
            _result(text, judgement)
            for text, judgement in zip(texts, judged.judgements, strict=True)
        ],
    }


def _result(text: str, judgement: Judgement) -> dict[str, object]:
    result: dict[str, object] = {
        "text": text,
        "accepted": judgement.accepted,
        "position": judgement.position,
        "expected": list(judgement.expected),
        "num_legal_tokens": judgement.num_legal,
    }
    return result if judgement.failure is None else result | {"error": judgement.failure}
