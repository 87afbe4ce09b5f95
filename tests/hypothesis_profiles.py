"""How many examples property tests try: one number for all, and more where rare cases break a law.

pytest                                  50
pytest --hypothesis-profile=nightly     1000
"""

from hypothesis import HealthCheck, settings

_NUM_EXAMPLES = {"tandem": 50, "nightly": 1000}


def load_profile() -> None:
    """Register both and choose the first; the flag of the command line chooses later.

    How long an example or its drawing takes says more of the machine than of Tandem.
    """
    for name, num_examples in _NUM_EXAMPLES.items():
        settings.register_profile(
            name,
            settings(),
            max_examples=num_examples,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("tandem")


def more_examples(times: int) -> settings:
    """So many times the examples of the profile."""
    return settings(max_examples=times * settings().max_examples)


def fewer_examples(divisor: int) -> settings:
    """That part of the examples of the profile, where one takes a tenth of a second and more."""
    return settings(max_examples=settings().max_examples // divisor)
