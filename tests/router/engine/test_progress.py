"""What the batcher waits for, and whether that is too long."""

from router.engine.batcher import Progress, Wait


def test_with_nothing_to_do_all_is_well() -> None:
    progress = Progress(4.0, 2.0)
    assert progress.trouble(1e6) is None
    assert progress.is_answering(1e6)


def test_a_step_that_takes_too_long_is_trouble_but_no_reason_to_doubt_the_shards() -> None:
    progress = Progress(4.0, 2.0)
    progress.start_wait(Wait.STEP, 10.0)
    assert progress.trouble(14.0) is None
    assert progress.trouble(17.2) == "a step has been under way for 7.2 s; 4 s is usual"
    assert progress.is_answering(17.2)
    progress.end_wait(Wait.STEP)
    assert progress.trouble(17.3) is None


def test_a_shard_without_a_sign_of_life_is_doubted_soon() -> None:
    progress = Progress(4.0, 2.0)
    progress.start_wait(Wait.CHECK, 10.0)
    assert progress.is_answering(12.0)
    assert not progress.is_answering(12.1)
    assert progress.trouble(12.1) is not None
    progress.end_wait(Wait.CHECK)
    assert progress.is_answering(12.2)


def test_broken_shards_are_trouble_from_the_first_failure_to_the_new_beginning() -> None:
    progress = Progress(4.0, 2.0)
    progress.mark_broken(10.0)
    progress.mark_broken(12.0)
    assert progress.is_broken
    assert progress.broken_s(13.0) == 3.0
    assert progress.trouble(13.0) == "the shards failed 3.0 s ago and have not begun anew"
    progress.mark_recovered()
    assert progress.trouble(13.0) is None
    assert progress.is_answering(13.0)
