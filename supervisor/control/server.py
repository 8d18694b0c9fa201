"""Owns the control socket: who may speak, what they may ask, and asking the supervisor for it.
May touch the supervisor it belongs to, and nothing of the host beyond that socket.
Never believes a caller's own word on who it is: the kernel says (SO_PEERCRED, unix(7)).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import os
import pwd
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from supervisor.audit.records import Decision
from supervisor.clock import CLOCK_JUMP
from supervisor.control.messages import MAX_LINE, Answer, Request, error_answer
from supervisor.daemon import Supervisor
from supervisor.errors import NotFound, NotYetDead, StateError, SupervisorError, UsageError
from supervisor.identifiers import check_goal, check_project, check_ticket
from supervisor.limits.budget import DAYS
from supervisor.observe.queries import Queries, kill_result, result
from supervisor.profile.load import load
from supervisor.runs.boxing import read_secrets
from supervisor.runs.life import LiveRun
from supervisor.runs.order import Order
from supervisor.runs.reasons import StopRequest, kill_request, stop_request
from supervisor.store.tickets import Claimed
from supervisor.workspace.tree import Tree, inspect

_KILL_PATIENCE_S = 15.0

Handler = Callable[[dict[str, Any], str], Awaitable[Any]]


class ControlServer:
    """Serves one supervisor on its socket. Use as an async context manager.

    handed_over: the listening socket, where systemd made it; its path, mode and group are systemd's.
    """

    def __init__(self, supervisor: Supervisor, handed_over: socket.socket | None = None) -> None:
        self.supervisor = supervisor
        self._handed_over = handed_over
        daily = supervisor.config.daily
        self.queries = Queries(supervisor.store, supervisor.paths, daily.zone, daily.caps)
        self.handlers: dict[str, Handler] = {
            "ping": self._ping,
            "ps": self._ps,
            "status": self._status,
            "events": self._events,
            "log": self._log,
            "report": self._report,
            "spend": self._spend,
            "kill": self._kill,
            "stop": self._stop,
            "run": self._run,
            "wait": self._wait,
            "pause": self._pause,
            "resume": self._resume,
        }
        self._server: asyncio.Server

    async def __aenter__(self) -> ControlServer:
        path = self.supervisor.socket_path
        if self._handed_over is not None:
            # start_server and not start_unix_server, which removes the path from Python 3.13 on.
            self._server = await asyncio.start_server(self._serve, sock=self._handed_over, limit=MAX_LINE)
            return self
        await _remove_stale(path)
        try:
            mask = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(self._serve, path, limit=MAX_LINE)
            finally:
                os.umask(mask)
            self._give_to_group(path)
        except OSError as error:
            raise StateError(
                f"the control socket {path} cannot be made: {error.strerror or error}",
                hint="set SUPERVISOR_RUN_DIR to a writable folder with a shorter path",
            ) from error
        return self

    def _give_to_group(self, path: str) -> None:
        name = self.supervisor.config.control.group
        if not name or self.supervisor.kind != "daemon":
            return
        try:
            group = grp.getgrnam(name).gr_gid
        except KeyError:
            raise UsageError(f"control.group: there is no group {name!a}") from None
        # The socket itself, whatever its name leads to by now.
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise OSError(errno.EEXIST, "something else stands there")
            os.chown(f"/proc/self/fd/{fd}", -1, group)
            os.chmod(f"/proc/self/fd/{fd}", 0o660)
        finally:
            os.close(fd)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        if self._handed_over is not None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.supervisor.socket_path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader, writer)
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
        except (ConnectionError, asyncio.LimitOverrunError, ValueError):
            pass  # whoever asked has gone, or did not speak our language
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        try:
            # Read first: a refusal that closes on a request still being sent would not arrive.
            said = await reader.readline()
            who = self._admit(writer.get_extra_info("socket"))
            request = msgspec.json.decode(said, type=Request)
            handler = self.handlers.get(request.op)
            if handler is None:
                raise UsageError(
                    f"this supervisor does not know {request.op!a}", hint="is it an older version?"
                )
            return Answer(kind="result", value=await handler(request.arguments, who))
        except SupervisorError as error:
            return error_answer(error)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return error_answer(UsageError(f"the request cannot be read: {error}"))

    def _admit(self, peer: socket.socket) -> str:
        """Root, the supervisor's own user, or a member of the control group; answers "uid:name"."""
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, gid = struct.unpack("3i", raw)
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = "?"
        if uid in (0, os.geteuid()) or self._in_group(name, gid):
            return f"{uid}:{name}"
        raise UsageError(f"user {name} ({uid}) may not control this supervisor")

    def _in_group(self, name: str, gid: int) -> bool:
        wanted = self.supervisor.config.control.group
        try:
            group = grp.getgrnam(wanted) if wanted else None
        except KeyError:
            return False
        return group is not None and (gid == group.gr_gid or name in group.gr_mem)

    # ------------------------------------------------------------ asking

    async def _ping(self, _: dict[str, Any], who: str) -> Any:
        own = self.supervisor
        return {"worker_id": own.worker_id, "kind": own.kind, "pid": os.getpid(), "you": who}

    async def _ps(self, wanted: dict[str, Any], _: str) -> Any:
        return self.queries.ps(bool(wanted.get("all")))

    async def _status(self, wanted: dict[str, Any], _: str) -> Any:
        return self.queries.status(wanted["ticket"])

    async def _events(self, wanted: dict[str, Any], _: str) -> Any:
        return self.queries.events(wanted["ticket"], int(wanted.get("after", 0)))

    async def _log(self, wanted: dict[str, Any], _: str) -> Any:
        return self.queries.log(wanted["ticket"], int(wanted.get("offset", 0)))

    async def _report(self, wanted: dict[str, Any], _: str) -> Any:
        return self.queries.report(wanted.get("since", "7d"))

    async def _spend(self, wanted: dict[str, Any], _: str) -> Any:
        return self.queries.spend(wanted.get("day", ""))

    # ------------------------------------------------------------ acting

    async def _kill(self, wanted: dict[str, Any], who: str) -> Any:
        request = kill_request("operator", who=who, note=str(wanted.get("note", "")))
        return await self._end(
            self.supervisor.find(check_ticket(wanted["ticket"])), request, _KILL_PATIENCE_S
        )

    async def _stop(self, wanted: dict[str, Any], who: str) -> Any:
        live = self.supervisor.find(check_ticket(wanted["ticket"]))
        grace_s = float(wanted["grace_s"]) if "grace_s" in wanted else live.profile.limits.stop_grace_s
        request = stop_request("operator", grace_s, who=who, note=str(wanted.get("note", "")))
        return await self._end(live, request, grace_s + _KILL_PATIENCE_S)

    async def _end(self, live: LiveRun, request: StopRequest, patience_s: float) -> Any:
        live.request_stop(request)
        try:
            async with asyncio.timeout(patience_s):
                await live.ended.wait()
        except TimeoutError:
            raise NotYetDead(
                f"{live.order.ticket} is being ended, but something of it is still alive",
                hint=f"supervisorctl status {live.order.ticket} shows what; it is tried again and again",
            ) from None
        return kill_result(live.run)

    async def _run(self, wanted: dict[str, Any], who: str) -> Any:
        """Start a run here; the answer comes when the agent has been released, or could not be."""
        # In a thread: reading a large tree or a secret's command must not keep a kill waiting.
        order = await asyncio.to_thread(make_order, wanted, int(who.partition(":")[0]))
        live = await self.supervisor.launch(order)
        await live.started.wait()
        if live.problem is not None:
            raise live.problem
        return {"run_id": live.run.run_id, "ticket": order.ticket, "asked_by": who, "summary": summary(live)}

    async def _wait(self, wanted: dict[str, Any], _: str) -> Any:
        """The result of a run, once it has ended."""
        ticket = check_ticket(wanted["ticket"])
        live = self.supervisor.runs.get(ticket)
        if live is not None:
            await live.ended.wait()
            return result(live.run)
        run = self.queries.find(ticket)
        if run.ended_at is None:
            raise NotFound(f"{ticket} is supervised by another process")
        return result(run)

    async def _pause(self, wanted: dict[str, Any], who: str) -> Any:
        return await self._set_paused(wanted, "true", who)

    async def _resume(self, wanted: dict[str, Any], who: str) -> Any:
        return await self._set_paused(wanted, "false", who)

    async def _set_paused(self, wanted: dict[str, Any], value: str, who: str) -> Any:
        project = str(wanted.get("project", ""))
        key = f"paused:{project}" if project else "paused"
        recorder = self.supervisor.recorder
        await recorder.call(lambda store: store.set_setting(key, value))
        if value == "false" and not project:
            await recorder.call(lambda store: store.set_setting(CLOCK_JUMP, ""))
        what = Decision.STARTS_PAUSED if value == "true" else Decision.STARTS_RESUMED
        self.supervisor.audit.decide(what, {"project": project, "who": who})
        return {key: value}


def make_order(wanted: dict[str, Any], uid: int | None = None, claim: Claimed | None = None) -> Order:
    """Check everything a run needs before anything is written; uid is who asks, None for ourselves.

    Raises SupervisorError.
    """
    if uid is not None:
        _check_profile_right(wanted["profile"], uid)
    limits = {str(key): str(value) for key, value in dict(wanted.get("limits", {})).items()}
    if uid is not None and limits and not _trusted(uid):
        raise UsageError("only root may change a profile's limits for a run of the daemon")
    loaded = load(wanted["profile"], limits)
    tree = inspect(wanted["worktree"])
    if uid is not None:
        _check_worktree_right(tree, uid)
    argv = [str(word) for word in wanted["argv"]]
    if not argv or not argv[0]:
        raise UsageError(
            "no command was given", hint="supervisorctl run --profile offline -- python3 script.py"
        )
    return Order(
        ticket=check_ticket(wanted["ticket"]),
        loaded=loaded,
        tree=tree,
        argv=argv,
        caller_environment=dict(wanted.get("environment", {})),
        secrets=read_secrets(loaded.profile),
        project=check_project(str(wanted.get("project", ""))),
        goal=check_goal(str(wanted.get("goal", ""))),
        claim=claim,
    )


def _trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _check_profile_right(reference: str, uid: int) -> None:
    """A group member's own profile could name any file of the host as a secret."""
    if not _trusted(uid) and ("/" in reference or reference.endswith(".toml")):
        raise UsageError(
            "only root may give the daemon a profile by path", hint="use a shipped profile's name"
        )


def _check_worktree_right(tree: Tree, uid: int) -> None:
    """Members of the control group get no more than they have: folders of their own."""
    if not _trusted(uid) and tree.owner_uid != uid:
        raise UsageError(
            f"the worktree {tree.root!a} belongs to another user ({tree.owner_uid})",
            hint="run it as that user, or as root",
        )


def summary(live: LiveRun) -> dict[str, Any]:
    """What the first lines of `run` show: the box and its limits."""
    attestation = live.run.attestation or {}
    return {
        "profile": live.profile.name,
        "worktree": live.order.tree.root,
        "mode": live.profile.files.worktree,
        "armed": len(attestation.get("armed", [])),
        "missing": attestation.get("missing", {}),
        "armed_ms": attestation.get("armed_ms"),
        "limits": live.run.limits,
        "gateway": live.profile.network.mode == "gateway",
        "money": _opening(live),
    }


def _opening(live: LiveRun) -> dict[str, Any]:
    """What the days had spent before this run, beside their caps."""
    spending = live.spending
    found: dict[str, Any] = {}
    for scope in DAYS:
        found[f"{scope}_spent_nanos"] = spending.opening.of(scope).spent_nanos
        found[f"{scope}_cap_nanos"] = spending.caps.nanos(scope)
    return found


async def _remove_stale(path: str) -> None:
    """A socket nobody answers on is a leftover; one that answers is somebody's. Called under a lock."""
    if not os.path.lexists(path):
        return
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    writer.close()
    raise UsageError(f"another supervisor answers on {path}")
