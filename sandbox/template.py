"""Owns the part of a root that all boxes of a base share: built once, cloned into each of them.
May touch the launcher's own mount namespace, which it makes; the host's is left as it is.
Never shares anything writable, and never shows a mount that the host has taken away meanwhile.
"""

from __future__ import annotations

import os
import select

from sandbox import mounts, syscalls
from sandbox.spec import Base


class Template:
    """The launcher lives in a copy of the host's mount namespace, so that blanks inherit the template.

    When the host's mounts change, the copy is made anew; poll() on an open mountinfo tells it
    (proc_pid_mountinfo(5): POLLPRI on changes).
    """

    def __init__(self) -> None:
        self._host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self.host_table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self.host_table, select.POLLPRI)
        self._of = ""
        self._stale = False

    def place_for(self, base: Base, base_text: str) -> str:
        """Where the shared steps of this base are done; "" if that failed and boxes must do them."""
        if base_text == self._of and not self.is_stale():
            return mounts.TEMPLATE
        try:
            self._build(base)
        except (OSError, mounts.StepFailed):
            self.forget()
            return ""
        self._of = base_text
        return mounts.TEMPLATE

    def is_stale(self) -> bool:
        """Have the host's mounts changed since the copy was made?"""
        if self._changes.poll(0):
            self._stale = True  # the kernel tells each change once (fs/namespace.c, mounts_poll)
        return self._stale

    def forget(self) -> None:
        """Go back to a plain copy of the host's mounts as they are now; the next box builds anew."""
        self._of = ""
        self._fresh_namespace()

    def tidy(self) -> None:
        """Let lower layers go that overlays have been made of: each overlay has a clone of its own."""
        while os.path.ismount(mounts.LOWER):
            syscalls.umount(mounts.LOWER, syscalls.MNT_DETACH)

    def _build(self, base: Base) -> None:
        self.forget()
        stage = mounts.Stage(agent_uid=0, privileged=True, staging=mounts.TEMPLATE)
        mounts.begin(stage, tuple(step for step in base.steps if isinstance(step, mounts.SHARED)))
        os.close(stage.root_fd)

    def _fresh_namespace(self) -> None:
        """The host's mounts as they are now, in a namespace of our own."""
        os.lseek(self.host_table, 0, os.SEEK_SET)
        while os.read(self.host_table, 1 << 16):
            pass
        self._changes.poll(0)
        self._stale = False
        syscalls.setns(self._host, syscalls.CLONE_NEWNS)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        # What we mount here must not appear on the host.
        private = syscalls.MS_PRIVATE
        syscalls.mount_setattr(syscalls.AT_FDCWD, "/", propagation=private, recursive=True)
