"""A step in flight, as its caller holds it."""

from collections.abc import Callable

from model_server.engine.step import StepOutput


class LaunchedStep:
    """A step in flight, or one that has ended: `finish` says what it gave, as often as asked."""

    def __init__(
        self, finish: Callable[[], StepOutput], is_ready: Callable[[], bool] = lambda: True
    ) -> None:
        self._finish = finish
        self._is_ready = is_ready
        self._output: StepOutput | None = None
        self._error: Exception | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `finish` does not wait for the device."""
        return self._output is not None or self._error is not None or self._is_ready()

    def finish(self) -> StepOutput:
        """Wait for the step. Raises what went wrong in it."""
        if self._output is None and self._error is None:
            try:
                self._output = self._finish()
            except Exception as error:
                self._error = error
                raise
        if self._output is None:
            assert self._error is not None
            raise self._error
        return self._output
