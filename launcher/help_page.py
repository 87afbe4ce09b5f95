"""The help of commands as plain text: names and sentences stand whole, however narrow the terminal.

typer's own tables give each kind of thing a column, and cut flags' names where six do not fit.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption

from launcher.bad_values import in_our_words

_ARGUMENTS, _OPTIONS = "Arguments", "Options"
_WHOLE = 1000


class SectionedCommand(TyperCommand):
    """A command whose options stand in the sections that they name, in the order given.

    What is wrong with a value is a BadSetting.
    """

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Reads the command line. Raises BadSetting, and typer's errors for what is no value."""
        argv = tuple(extra.get("args", args[1] if len(args) > 1 else ()))
        try:
            return super().make_context(*args, **extra)
        except Exception as error:
            told = in_our_words(error, argv)
            if told is None:
                raise
            raise told from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments, then section by section the options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            section = _ARGUMENTS
            if isinstance(param, TyperOption):
                section = param.rich_help_panel or _OPTIONS
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(section, []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class WholeGroup(TyperGroup):
    """Commands, each with all of its first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes a line, or several, for each command."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(_WHOLE)) for name, each in commands if each]
            )
