"""Owns the program that is killed: a root and 50 sleepers, 20 of which have left its process group.
May touch nothing: it is a text that a plain Python outside or inside a box executes.
Never says that it is ready before all 50 are executing their own program.
"""

from __future__ import annotations

SIZE = 51
READY = b"ready"
PYTHON = "/usr/bin/python3"

CODE = """
import os, sys, time
read_end, write_end = os.pipe()
os.set_inheritable(write_end, False)
def sleep():
    os.execv("/bin/sleep", ["sleep", "600"])
for kind, count in (("plain", 30), ("setsid", 10), ("twice", 10)):
    for _ in range(count):
        pid = os.fork()
        if pid:
            if kind == "twice":
                os.waitpid(pid, 0)
            continue
        os.close(read_end)
        if kind != "plain":
            os.setsid()
        if kind == "twice" and os.fork():
            os._exit(0)
        sleep()
os.close(write_end)
os.read(read_end, 1)
print("ready", flush=True)
time.sleep(600)
"""


def argv() -> list[str]:
    """-I -S: quick to start, and the same in a box and outside."""
    return [PYTHON, "-ISc", CODE]
