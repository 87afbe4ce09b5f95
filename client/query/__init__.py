"""The query language: Python programs whose top-level strings are prompts with holes.

    from client import query

    @query.query
    async def capital(country: str) -> str:
        '''
        "The capital of {country} is[TOWN]." where stops_before(TOWN, ".")
        return TOWN
        '''

`from client.query import query, run, F` works as well. The package's name is taken, so the
decorator is a name in it, as `lmql.query` is.
"""

from client.query.api import (
    ModelLike,
    Scoring,
    Server,
    generate,
    generate_sync,
    model,
    read_file,
    run,
    run_all,
    run_all_sync,
    run_file,
    run_file_sync,
    run_sync,
    score,
    score_sync,
    watch,
)
from client.query.errors import (
    BadCondition,
    BadProgram,
    NotSatisfied,
    ProgramFailed,
    QueryError,
    Unsatisfiable,
)
from client.query.functions import AsyncQuery, F, Query, SyncQuery, query
from client.query.program import Program
from client.query.running.decoders import Decoding, argmax, beam, sample
from client.query.running.decoding import Choice, Span
from client.query.running.results import Request, Result, State, plain

__all__ = [
    "AsyncQuery",
    "BadCondition",
    "BadProgram",
    "Choice",
    "Decoding",
    "F",
    "ModelLike",
    "NotSatisfied",
    "Program",
    "ProgramFailed",
    "Query",
    "QueryError",
    "Request",
    "Result",
    "Scoring",
    "Server",
    "Span",
    "State",
    "SyncQuery",
    "Unsatisfiable",
    "argmax",
    "beam",
    "generate",
    "generate_sync",
    "model",
    "plain",
    "query",
    "read_file",
    "run",
    "run_all",
    "run_all_sync",
    "run_file",
    "run_file_sync",
    "run_sync",
    "sample",
    "score",
    "score_sync",
    "watch",
]
