"""Which requests are passed on, told from the router's own document; all others end at the front.

It knows paths and methods alone. Paths of KServe name their model; those of stored responses name
something that one of the servers has, and nobody knows which.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

# The name may have slashes.
_KSERVE = re.compile(
    r"/v2/models/(?P<model>.+?)(?P<version>/versions/[^/]+)?(?P<rest>/ready|/infer|)"
)
_STORED = re.compile(r"/v1/responses/(?!input_tokens$)[^/]+(/input_items)?")


class Kind(Enum):
    """How a request's model is found."""

    OF_BODY = "of body"
    OF_PATH = "of path"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class Route:
    """A request that is passed on. `model` is what its path says."""

    kind: Kind
    model: str | None = None


class Routes:
    """The paths of a model's server that are passed on."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """`document` is the router's, in OpenAPI's form."""
        self._methods = {
            path: {method.upper() for method in methods}
            for path, methods in document["paths"].items()
        }

    def methods(self, path: str) -> set[str]:
        """By what a path can be asked; empty when there is nothing."""
        if kserve := _KSERVE.fullmatch(path):
            return {"POST"} if kserve["rest"] == "/infer" else {"GET", "HEAD"}
        if stored := _STORED.fullmatch(path):
            return {"GET", "HEAD"} if stored[1] else {"GET", "HEAD", "DELETE"}
        found = self._methods.get(path, set())
        return found | {"HEAD"} if "GET" in found else found

    def find(self, method: str, path: str) -> Route | None:
        """How to pass a request on; None: that is not to be done."""
        if method not in self.methods(path):
            return None
        if kserve := _KSERVE.fullmatch(path):
            return Route(Kind.OF_PATH, kserve["model"])
        if _STORED.fullmatch(path):
            return Route(Kind.STORED)
        return Route(Kind.OF_BODY)
