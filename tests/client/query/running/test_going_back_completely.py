"""Going back finds what there is to find: against a plain search over all texts."""

import asyncio
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from client.query import NotSatisfied, Unsatisfiable
from client.query.program import Context
from tests.client.query.running.programs import Body, checked, hole, run_body, say
from tests.client.query.running.scripted_model import ScriptedModel

NAMES = "XYZ"
Texts = tuple[str, ...]
Worlds = st.fixed_dictionaries({name: st.permutations("abc") for name in NAMES})
# Checks: the holes that they are about, and the texts of these that they let pass.
Checks = st.lists(
    st.sampled_from(["X", "Y", "XY", "XZ", "YZ", "XYZ"]).flatmap(
        lambda names: st.tuples(
            st.just(names), st.sets(st.tuples(*(st.sampled_from("abc") for _ in names)))
        )
    ),
    max_size=3,
)


def three_holes(checks: list[tuple[str, set[Texts]]]) -> Body:
    async def body(context: Context) -> Texts:
        made = []
        for name in NAMES:
            say(context, f" {name}:")
            own = [
                checked(" ".join(names), lambda *texts, passing=passing: texts in passing)
                for names, passing in checks
                if name in names
            ]
            made.append(await context.hole(hole(name, *own)))
        return tuple(made)

    return body


def first_of_all(wishes: dict[str, list[str]], checks: list[tuple[str, set[Texts]]]) -> object:
    """The first texts, by the model's preference hole after hole, that pass; None if none do."""
    for texts in product(*(wishes[name] for name in NAMES)):
        of = dict(zip(NAMES, texts, strict=True))
        if all(tuple(of[name] for name in names) in passing for names, passing in checks):
            return texts
    return None


@given(wishes=Worlds, checks=Checks)
def test_the_first_texts_that_pass_are_found_or_there_are_none(
    wishes: dict[str, list[str]], checks: list[tuple[str, set[Texts]]]
) -> None:
    model = ScriptedModel(lambda prompt: wishes[prompt[-2]])

    try:
        found = asyncio.run(run_body(three_holes(checks), model, tries=100)).value
    except (NotSatisfied, Unsatisfiable):
        found = None

    assert found == first_of_all(wishes, checks)
