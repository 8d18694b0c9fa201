"""Owns printing the completion script of a shell.
May touch standard output.
Never writes into the user's shell configuration: that is theirs.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from supervisor.cli import output
from supervisor.errors import UsageError

_HOW = {
    "bash": 'eval "$(supervisorctl completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(supervisorctl completion zsh)"    in ~/.zshrc',
    "fish": "supervisorctl completion fish | source     in ~/.config/fish/config.fish",
}


@click.command(epilog=" · ".join(_HOW.values()))
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print the completion script for a shell; tickets and profiles are completed too."""
    from supervisor.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}")
    output.say(kind(cli, {}, "supervisorctl", "_SUPERVISORCTL_COMPLETE").source())
