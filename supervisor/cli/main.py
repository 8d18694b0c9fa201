"""Owns the program supervisorctl: its commands by name, and turning errors into exit codes.
May touch nothing but the command line; each command lives in a module of its own, loaded when used.
Never prints a traceback unless asked with --debug.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from supervisor.errors import SupervisorError

_COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("supervisor.cli.run", "run", "Run one agent in a box, in the current folder."),
    "kill": ("supervisor.cli.stops", "kill", "Kill runs now and wait until nothing of them is alive."),
    "stop": ("supervisor.cli.stops", "stop", "Ask runs to end, then force them after the grace."),
    "pause": ("supervisor.cli.stops", "pause", "Let no new run start."),
    "resume": ("supervisor.cli.stops", "resume", "Let runs start again, or clear a ticket's stop flag."),
    "ps": ("supervisor.cli.look", "ps", "What is running."),
    "status": ("supervisor.cli.look", "status", "One run in full."),
    "logs": ("supervisor.cli.look", "logs", "What the agent printed, redacted."),
    "events": ("supervisor.cli.look", "events", "What happened to a run, in order."),
    "spend": ("supervisor.cli.spend", "spend", "What a day has cost, what is held, what is left."),
    "tickets": ("supervisor.cli.tickets", "tickets", "The queue: add, list, requeue."),
    "work": ("supervisor.cli.work", "work", "Claim tickets from the queue and run an agent for each."),
    "audit": ("supervisor.cli.audit", "audit", "The trail of decisions: verify, show, export, key."),
    "report": ("supervisor.cli.report", "report", "How runs ended, and what they cost."),
    "diff": ("supervisor.cli.changes", "diff", "What a run changed in its overlay."),
    "apply": ("supervisor.cli.changes", "apply", "Carry a run's changes over to the worktree, vetted."),
    "discard": ("supervisor.cli.changes", "discard", "Throw a run's changes away."),
    "serve": ("supervisor.cli.serve", "serve", "Be the daemon."),
    "agents": ("supervisor.cli.agents", "agents", "How known agent programs are pointed at the gateway."),
    "doctor": ("supervisor.cli.doctor", "doctor", "Make a real box and show what is armed on this host."),
    "profile": ("supervisor.cli.profile", "profile", "Look at profiles: list, explain, lint, diff, score."),
    "install": ("supervisor.cli.install", "install", "Set the daemon up on this host, as root."),
    "uninstall": ("supervisor.cli.install", "uninstall", "Take it off again; --purge its state too."),
    "redact": ("supervisor.cli.redact", "redact", "Take secrets out of text: a filter, or files."),
    "completion": ("supervisor.cli.completion", "completion", "Print the completion script for a shell."),
}


_READER_GONE = 141  # as a shell says it of a program that SIGPIPE ended


class LazyGroup(click.Group):
    """Names and one-line helps are here; a command's module is imported when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] == "help":
            args = [*args[1:], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            if args[0] == "version":
                raise SupervisorUsage("there is no command 'version'", "supervisorctl --version")
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            guess = f"did you mean {near[0]}?" if near else "supervisorctl --help lists the commands"
            raise SupervisorUsage(f"there is no command {args[0]!a}", guess)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """click ends with 1 on a closed pipe, which here means an error nobody expected."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(_READER_GONE) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


class SupervisorUsage(click.UsageError):
    """A usage error with a hint of ours."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def _version() -> str:
    from importlib import metadata  # costs more than click does

    try:
        return metadata.version("sidecar-supervisor")
    except metadata.PackageNotFoundError:
        return "unknown"


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"supervisorctl {_version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Commands take --json. Exit codes: 0 done, 2 usage, 3 no such ticket, 4 not yet dead, "
    "5 no supervisor; `run` exits with the agent's code, or 64 and up for a limit (run --help).",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version.",
)
def cli(debug: bool) -> None:
    """Run autonomous agents in a box and enforce from outside what they must not decide themselves.

    \b
    Box one agent here:     supervisorctl run --profile coding -- claude -p "fix the tests"
    Stop it, from anywhere: supervisorctl kill TICKET      (all of them: kill --all)
    """


def main() -> None:
    """Run the command line; the exit code says how it went."""
    debug = "--debug" in sys.argv[1:3] or bool(os.environ.get("SUPERVISOR_DEBUG"))
    try:
        code = cli.main(standalone_mode=False, prog_name="supervisorctl")
    except SupervisorError as error:
        if debug:
            raise
        _print_error(error.message, error.hint)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.UsageError as error:
        hint = getattr(error, "hint", "") or (f"{error.ctx.command_path} --help" if error.ctx else "")
        _print_error(error.format_message(), hint)
        sys.exit(2)
    except click.ClickException as error:
        _print_error(error.format_message(), "")
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        _print_error(
            f"unexpected: {type(error).__name__}: {error}",
            "run it again with --debug before the command, and report it",
        )
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(message: str, hint: str) -> None:
    click.echo(f"{click.style('error:', fg='red')} {_plain(message)}", err=True)
    if hint:
        click.echo(f"  hint: {_plain(hint)}", err=True)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
