"""Owns the keys that a state folder has for itself: made once, for its user alone.
May touch files named *.key in the state folder.
Never makes a new key where one is damaged: what the old one marked would silently mean nothing.
"""

from __future__ import annotations

import os
import secrets

from supervisor.errors import StateError
from supervisor.ownership import open_file, read_file
from supervisor.paths import Paths

KEY_BYTES = 32


def state_key(paths: Paths, name: str) -> bytes:
    """The key of that name, 32 bytes. Raises StateError."""
    path = f"{paths.state}/{name}.key"
    try:
        try:
            fd = open_file(path, os.O_WRONLY, exclusive=True)
        except FileExistsError:
            key = read_file(path, KEY_BYTES + 1)
        else:
            key = secrets.token_bytes(KEY_BYTES)
            with os.fdopen(fd, "wb") as file:
                file.write(key)
    except OSError as error:
        raise StateError(f"the key {path} cannot be used: {error.strerror}") from error
    if len(key) != KEY_BYTES:
        raise StateError(
            f"the key {path} is damaged", hint="remove it; what the old one marked cannot be checked"
        )
    return key
