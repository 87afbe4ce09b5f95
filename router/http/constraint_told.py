"""What answers of every API tell of the constraint that they were made under."""

from typing import Any

from router.request.events import Finished


def told_of_constraint(end: Finished) -> dict[str, Any]:
    """Whether the text satisfies the request's constraint; nothing without one.

    A violation is told where the text itself was checked.
    """
    if end.constraint_satisfied is None:
        return {}
    violation = {} if end.violation is None else {"constraint_violation": end.violation}
    return {"constraint_satisfied": end.constraint_satisfied, **violation}
