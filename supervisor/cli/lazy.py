"""Owns the commands of `profile` that live in modules of their own, imported when they are used.
May touch nothing but the command line.
Never makes `profile list` wait for what only `profile lint` needs.
"""

from __future__ import annotations

from importlib import import_module

import click

_ELSEWHERE: dict[str, tuple[str, str]] = {
    "lint": ("supervisor.cli.profile_audit", "lint"),
    "diff": ("supervisor.cli.profile_audit", "diff"),
    "score": ("supervisor.cli.profile_audit", "score"),
    "verify": ("supervisor.cli.verify", "verify"),
    "check-report": ("supervisor.cli.verify", "check_report"),
    "schema": ("supervisor.cli.profile_schema", "schema"),
}


class LazyCommands(click.Group):
    """A group whose further commands are named here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ELSEWHERE:
            module, attribute = _ELSEWHERE[cmd_name]
            command: click.Command = getattr(import_module(module), attribute)
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """click cuts the first sentence of a command to one line; here it is shown whole."""
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(self.get_command(ctx, name))) for name in names])


def _first_sentence(command: click.Command | None) -> str:
    text = " ".join((command.help or "").split("\n\n")[0].split()) if command else ""
    return text.split(". ")[0].removesuffix(".") + "."
