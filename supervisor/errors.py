"""Owns the error tree: what went wrong, with which thing, what to do about it, and the exit code.
May touch nothing.
Never carries a secret: messages reach terminals, logs and the database.

SupervisorError                     64 is free for the agent's own codes; see runs/reasons.py
├── AuditBroken             exit 1  the audit trail is not as it was written
├── UsageError              exit 2  the command line, a profile, a ticket key
│   └── ProfileError                with file and line where they are known
├── NotFound                exit 3  no such ticket, run or profile
├── NotYetDead              exit 4  a stop was accepted, but something is still alive
├── NoSupervisor            exit 5  nothing answers on the control socket
│   └── NotAnswering                something is there, and hangs
├── NotStarted              exit 64 a control could not be armed; nothing was executed
└── StateError              exit 6  the state folder or the database cannot be used
    └── DamagedState                what is there is not what this program wrote
        └── UnreadableRow           one row of it
"""

from __future__ import annotations


class SupervisorError(Exception):
    """Base of all errors that are shown to people. message says what happened, hint what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class AuditBroken(SupervisorError):
    """A record of the audit trail was altered, or is missing; the message names the first one."""

    exit_code = 1


class UsageError(SupervisorError):
    """Something the caller wrote cannot be used as it is."""

    exit_code = 2


class ProfileError(UsageError):
    """A profile that does not say what it must; where is "file:line" as far as known, what is without it."""

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.what = message
        self.where = where


class NotFound(SupervisorError):
    """There is no such ticket, run or profile."""

    exit_code = 3


class NotYetDead(SupervisorError):
    """A stop was accepted and is under way; something of the run is still alive."""

    exit_code = 4


class NoSupervisor(SupervisorError):
    """Nothing answers where a supervisor should."""

    exit_code = 5


class NotAnswering(NoSupervisor):
    """There is one, and it is hung or overloaded."""


class NotStarted(SupervisorError):
    """A control could not be armed, so nothing was executed. control is its name."""

    exit_code = 64

    def __init__(self, message: str, *, control: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.control = control


class StateError(SupervisorError):
    """The state folder or its database cannot be used: missing, unwritable, corrupt, full."""

    exit_code = 6


class DamagedState(StateError):
    """What is there is not what this program wrote. It may be put back, but is not waited for for long."""


class UnreadableRow(DamagedState):
    """One row, written by hand or by another version: trying again does not help."""
