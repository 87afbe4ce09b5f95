"""What clients may say of best-first searches; exact types, unknown fields ignored."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from router.http.lmtp.beam_schema import BeamBody, SearchBody, token_ids
from router.request.error_text import WrongPart

# A message could hold more of them than a search keeps.
MAX_NODES = 4096
# Of alternatives to one token nobody is told of more at a time, be it twice.
_MAX_KNOWN = 512


def _known_ids(value: Any) -> tuple[int, ...]:
    known = token_ids(value)
    if len(known) > _MAX_KNOWN:
        raise WrongPart(f"must be a list of at most {_MAX_KNOWN} token ids", f"{len(known)} ids")
    return known


class NodeBody(BeamBody):
    """A beam that may go on, or whose hole has `ended_by` a token, or by its length or its text.

    With `known`: by none of these next tokens, and with at most `most` as log-probability.
    """

    ended_by: Literal["token", "length"] | None = None
    known: Annotated[tuple[int, ...], PlainValidator(_known_ids)] = ()
    most: Annotated[float, Field(allow_inf_nan=False)] | None = None


class BestBody(SearchBody):
    """BEST. `width` nodes are asked at once; None: as many as the server thinks right."""

    width: Annotated[int, Field(ge=1)] | None = None
    k: Annotated[int, Field(ge=1, le=MAX_NODES)]
    budget: Annotated[int, Field(ge=0, le=2**31)] = 512
    num_alternatives: Annotated[int, Field(ge=1, le=256)] = 16
    bound: Annotated[float, Field(allow_inf_nan=False)] | None = None
    beams: list[NodeBody] | None = Field(default=None, min_length=1, fail_fast=True)
