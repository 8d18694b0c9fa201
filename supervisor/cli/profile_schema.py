"""Owns the command that prints the JSON Schema of profiles.
May touch standard output.
Never reads a profile.
"""

from __future__ import annotations

import json

import click

from supervisor.cli import output


@click.command()
@click.option("--json", "_", is_flag=True, help="The same: the schema is JSON already.")
def schema(_: bool) -> None:
    """Print the JSON Schema of a profile, for editors and for checks elsewhere.

    \b
    With taplo, in the first line of a profile:
      #:schema ./profile.schema.json
    """
    from supervisor.profile.json_schema import json_schema

    output.say(json.dumps(json_schema(), indent=2))
