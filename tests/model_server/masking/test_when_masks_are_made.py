"""When masks are made: some by other threads, quick ones between steps, none for nobody."""

import json
from dataclasses import replace

from constraints.spec import Kind
from tests.model_server.masking.shard import Shard, of
from tests.model_server.masking.test_guided_steps import (
    HOT,
    PERSON,
    PROMPT,
    SCHEMA,
    SENTENCE,
    is_person,
    is_sentence,
)


def test_searches_of_a_new_schema_get_what_they_use_behind_the_first_token(shard: Shard) -> None:
    new = of(Kind.JSON_SCHEMA, json.dumps({**SCHEMA, "title": "new"}))
    driver = shard.driver()
    driver.add(1, PROMPT, 60, sampling=HOT, constraint=new)

    driver.step()
    language = shard.languages.compile(new.spec)
    first = len(driver.outputs[1]) > 0, language.is_search_prepared
    driver.step()
    second = len(driver.outputs[1]) > 1, language.is_search_prepared
    driver.run()

    assert (first, second) == ((True, False), (True, True))
    assert is_person(shard.text(driver.outputs[1]))


def test_quick_masks_made_between_steps_are_those_made_in_the_next_one(shard: Shard) -> None:
    texts = []
    num_unprepared = 0
    for is_made_between in (True, False):
        driver = shard.driver()
        for request_id in range(3):
            sampling = replace(HOT, seed=request_id)
            driver.add(request_id, PROMPT, 40, sampling=sampling, constraint=SENTENCE)
        while any(request.finish_reason is None for request in driver.requests.values()):
            driver.step()
            num_unprepared += not driver.runner.is_prepared
            if is_made_between:
                driver.runner.prepare()
                assert driver.runner.is_prepared
        texts.append([shard.text(driver.outputs[request_id]) for request_id in range(3)])

    assert num_unprepared > 10
    assert texts[0] == texts[1]
    assert all(map(is_sentence, texts[0]))


def test_no_other_thread_is_asked_for_a_mask_that_is_quick(shard: Shard) -> None:
    guides = shard.guides()
    driver = shard.driver(guides)
    driver.add(1, PROMPT, 40, sampling=HOT, constraint=SENTENCE)
    driver.add(2, PROMPT, 40, sampling=HOT, constraint=PERSON)
    driver.step()
    driver.step()
    assert set(guides._jobs) == {2}


def test_an_output_that_is_gone_between_steps_has_no_mask_made(shard: Shard) -> None:
    driver = shard.driver()
    for request_id in (1, 2):
        driver.add(request_id, PROMPT, 40, sampling=HOT, constraint=SENTENCE)
    driver.step()
    driver.preempt(1)
    driver.runner.prepare()
    driver.run()
    assert all(is_sentence(shard.text(driver.outputs[i])) for i in (1, 2))
    assert driver.outputs[1] == driver.outputs[2]
