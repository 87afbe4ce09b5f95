"""Programs whose bodies are written by hand, as reading would make them."""

from collections.abc import Awaitable, Callable

from client.calls import Model
from client.query.conditions import build
from client.query.place import Place, Source
from client.query.program import Condition, Context, Hole, Program
from client.query.running.decoders import decoding
from client.query.running.execution import Job
from client.query.running.results import Result
from client.query.running.session import RunSurroundings, run_job

HERE = Place(1, 1, 1, 2)
SOURCE = Source("the program's text", "<test>")

Body = Callable[..., Awaitable[object]]


def program(body: Body, *holes: str, returns: bool = False) -> Program:
    return Program(
        name=body.__name__,
        source=SOURCE,
        parameters=(),
        body=body,
        hole_names=frozenset(holes),
        returns=returns,
    )


def hole(name: str, *conditions: Condition, **more: object) -> Hole:
    return Hole(name=name, place=HERE, conditions=conditions, **more)  # type: ignore[arg-type]


def say(context: Context, text: str) -> None:
    context.say(text, HERE)


def ref(name: str) -> object:
    return build.ref(HERE, name)


def one_of(name: str, *values: str) -> Condition:
    return lambda: build.term(build.compare(HERE, ref(name), "in", list(values)))


def checked(names: str, function: Callable[..., object], text: str = "check") -> Condition:
    """Python over the holes of these names."""
    return lambda: build.opaque(HERE, tuple(names.split()), function, text)


async def run_body(
    body: Body,
    model: Model,
    decoder: str = "argmax",
    returns: bool = False,
    **options: object,
) -> Result[object]:
    (result,) = await run_bodies(body, model, decoder, returns, **options)
    return result


async def run_bodies(
    body: Body,
    model: Model,
    decoder: str = "argmax",
    returns: bool = False,
    **options: object,
) -> tuple[Result[object], ...]:
    job = Job(program=program(body, returns=returns))
    return await run_job(job, decoding(decoder, (), options), RunSurroundings(model=model))
