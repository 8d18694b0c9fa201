"""Owns a kill by stop-file in a folder that something was mounted over, in a mount namespace of its own.
May touch mounts of that namespace only; run it below `unshare -m`.
Never leaves the namespace: all that is mounted goes with it.
"""

from __future__ import annotations

import os
import subprocess
import sys

from stand import stand


def main() -> None:
    assert os.readlink("/proc/self/ns/mnt") != sys.argv[1], "not in a namespace of its own"
    with stand() as there:
        there.serve()
        ticket = there.start()
        folder = there.state / "stop"
        subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
        try:
            (folder / ticket).write_text("mounted over")
            run = there.ended(ticket)
            assert there.survivors() == []
            print(run.reason, run.reason_by, run.reason_note)
        finally:
            subprocess.run(["umount", str(folder)], check=True)


if __name__ == "__main__":
    main()
