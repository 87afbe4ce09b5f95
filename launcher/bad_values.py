"""What is wrong with an option's value: the flag or its variable, the value, and the rule.

typer names the rule alone, in the words of the library that it checks by.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import BadSetting

_RULES: Mapping[str, str] = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
}


def in_our_words(error: Exception, argv: Sequence[str]) -> BadSetting | None:
    """What typer says of a value in `argv`, or in a variable; None for what is about no value."""
    option = getattr(error, "param", None)
    found = _found(error.__cause__)
    if option is None or found is None:
        return None
    rule = _RULES.get(found["type"], "").format(**found.get("ctx") or {})
    said = str(found["msg"]).removeprefix("Value error, ")
    return BadSetting(f"{_source(option, argv)} {found['input']!r}: {rule or said}")


def _found(cause: BaseException | None) -> Mapping[str, Any] | None:
    """The first fault that was found, if who checks tells of it."""
    tell = getattr(cause, "errors", None)
    faults = tell() if callable(tell) else ()
    return faults[0] if faults else None


def _source(option: Any, argv: Sequence[str]) -> str:
    variables = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    is_given = any(_names(word, flag) for word in argv for flag in option.opts)
    return str(option.opts[0]) if is_given or not variables else " or ".join(variables)


def _names(word: str, flag: str) -> bool:
    """A short flag may have its value behind it without any sign between them."""
    return word.partition("=")[0] == flag or (len(flag) == 2 and word.startswith(flag))
