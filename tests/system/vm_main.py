"""Owns one system test: disks made, machine booted, its lines followed, a verdict given.
May touch its temporary folder and the machine's process, both gone afterwards whatever happened.
Never waits without a bound, and never counts a machine that fell silent as good.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from vm_image import GUEST_PATIENCE_S, BuildFailed, Image, base_image, commit_disk, install_host_tools, say
from vm_report import Report

REPOSITORY = Path(__file__).resolve().parent.parent.parent
BOOT_PATIENCE_S = 240
MEMORY_MIB = 3072


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/system/run", description="Scenarios in a Debian 12 machine.")
    parser.add_argument("--only", default="", metavar="WORD", help="only scenarios with WORD in their name")
    parser.add_argument("--commit", default="HEAD", metavar="REV", help="what to test (default HEAD)")
    parser.add_argument("--console", action="store_true", help="show the machine's console at the end")
    parser.add_argument("--rebuild", action="store_true", help="make the cached image anew")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    if os.geteuid() != 0:
        print("tests/system/run: run as root: making the disk image needs chroot")
        return 2
    report = Report()
    start = time.monotonic()
    try:
        install_host_tools()
        image = base_image(REPOSITORY, options.rebuild)
        with tempfile.TemporaryDirectory(prefix="system-test-") as folder:
            disk = commit_disk(REPOSITORY, options.commit, Path(folder), options.only)
            say(f"image ready after {time.monotonic() - start:.0f} s; booting")
            console = Path(folder) / "console.log"
            _follow(image, disk, console, report)
            text = console.read_text(errors="replace") if console.exists() else ""
    except BuildFailed as error:
        print(f"the machine could not be made: {error}")
        text = ""
    if options.console or not report.complete:
        print("--- end of the machine's console")
        print("\n".join(text.splitlines()[-60:]))
    _verdict(report, time.monotonic() - start)
    return 0 if report.good else 1


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _verdict(report: Report, seconds: float) -> None:
    print(f"--- {', '.join(f'{key} {value}' for key, value in report.facts.items())}; {seconds:.0f} s in all")
    print(report.table())
    if not report.complete:
        print("  FAILED  the machine did not finish its scenarios")
    print(report.summary())


def _follow(image: Image, disk: Path, console: Path, report: Report) -> None:
    """Print the guest's lines as they come. The machine is killed past its time."""
    with _machine(image, disk, console) as machine:
        for line in _lines(machine, report):
            report.feed(line)
            print(f"    {line}", flush=True)


@contextlib.contextmanager
def _machine(image: Image, disk: Path, console: Path) -> Iterator[subprocess.Popen[bytes]]:
    """qemu without acceleration, as /dev/kvm may exist and hang. setpriv ends it should we be killed."""
    command = [
        *("setpriv", "--pdeathsig", "KILL"),
        *("qemu-system-x86_64", "-machine", "accel=tcg", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB)),
        *("-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot", "-snapshot"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd)),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=false"),
        *("-drive", f"file={image.disk},if=virtio,format=raw", "-drive", f"file={disk},if=virtio,format=raw"),
        *("-serial", f"file:{console}", "-serial", "stdio"),
    ]
    machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        yield machine
    finally:
        machine.kill()
        machine.wait()


def _lines(machine: subprocess.Popen[bytes], report: Report) -> Iterator[str]:
    """Two bounds: one for the boot, and from the guest's first word one for its scenarios."""
    assert machine.stdout is not None
    start = time.monotonic()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(machine.stdout, selectors.EVENT_READ)
        while True:
            patience = BOOT_PATIENCE_S + (GUEST_PATIENCE_S if report.started else 0)
            left = start + patience - time.monotonic()
            if left <= 0 or not selector.select(left):
                break
            read = os.read(machine.stdout.fileno(), 65536)
            if not read:
                return
            *complete, rest = (rest + read).split(b"\n")
            for line in complete:
                yield line.decode(errors="replace").rstrip("\r")
    say("the machine is ended: its time is over")


if __name__ == "__main__":
    sys.exit(main())
