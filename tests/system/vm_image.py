"""Owns the machine's disks: a cached Debian with the dependencies, a small one with the tested commit.
May touch the cache folder and, as root, packages of this host that building needs.
Never writes to a cached disk once it is made, and never starts anything of the image but package set-up.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RELEASE = "bookworm"
PACKAGES = (
    "systemd systemd-sysv dbus dbus-user-session libpam-systemd udev kmod linux-image-amd64 apparmor "
    "python3 python3-venv libseccomp2 iproute2 procps git ca-certificates nodejs gcc libc6-dev"
).split()
TEST_DEPENDENCIES = ("pytest>=8", "hypothesis>=6.100")
VENV = "/opt/supervisor"
COMMIT = "/opt/commit"
RESULTS_TTY = "/dev/ttyS1"
GUEST_PATIENCE_S = 2400
UNNEEDED_MODULES = "drivers/gpu drivers/media drivers/net drivers/infiniband sound"
IMAGE_SIZE = "4G"

_HOST_TOOLS = {
    "debootstrap": "debootstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "mke2fs": "e2fsprogs",
}

_UNIT = f"""\
[Unit]
Description=Run the system tests and power off
After=multi-user.target systemd-logind.service
RequiresMountsFor={COMMIT}
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=oneshot
TimeoutStartSec={GUEST_PATIENCE_S}
ExecStart=/usr/bin/python3 {COMMIT}/tests/system/guest/guest_driver.py {RESULTS_TTY}

[Install]
WantedBy=graphical.target
"""

FILES = {
    "etc/fstab": f"/dev/vda / ext4 rw,noatime 0 0\n/dev/vdb {COMMIT} ext4 rw,noatime 0 0\n",
    "etc/hostname": "system-test\n",
    "etc/machine-id": "5eedc0de5eedc0de5eedc0de5eedc0de\n",
    "etc/initramfs-tools/conf.d/small": "MODULES=list\nCOMPRESS=lz4\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
    "etc/systemd/system/system-test.service": _UNIT,
}
MASKED_UNITS = (
    "getty@tty1.service serial-getty@ttyS0.service apt-daily.timer apt-daily-upgrade.timer "
    "e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-timesyncd.service"
).split()
USERS = ("tester", "loner")
"""One with a manager of its own (linger), one without."""


class BuildFailed(Exception):
    """The image could not be made; the message says which step and how to go on."""


@dataclass(frozen=True, slots=True)
class Image:
    disk: Path
    kernel: Path
    initrd: Path


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def cache_folder() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sidecar-supervisor-vm"
    return Path(os.environ.get("SYSTEM_TEST_CACHE") or default)


def install_host_tools() -> None:
    missing = [package for tool, package in _HOST_TOOLS.items() if shutil.which(tool) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BuildFailed(f"missing on this host: {' '.join(missing)}; run as root on Debian")
    say(f"installing {' '.join(missing)}")
    _run("apt-get", "update", "-qq")
    _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def dependencies(repository: Path) -> list[str]:
    """What pyproject.toml asks for at run time, and what running the tests takes."""
    with open(repository / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    return [*project["dependencies"], *TEST_DEPENDENCIES]


def base_image(repository: Path, rebuild: bool) -> Image:
    """The cached image, made first where there is none for these packages, files and dependencies."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    wanted = dependencies(repository)
    with _locked(cache):
        root = cache / f"root-{_digest(RELEASE, *PACKAGES)}"
        parts = (root.name, *wanted, UNNEEDED_MODULES, *FILES.values(), *MASKED_UNITS, *USERS)
        made = cache / f"image-{_digest(*parts)}"
        if rebuild:
            for folder in (root, made):
                shutil.rmtree(folder, ignore_errors=True)
        if not root.exists():
            _forget_others(cache, "root-")
            with _work_folder(cache) as work:
                _bootstrap(work / "root")
                (work / "root").rename(root)
        if not made.exists():
            _forget_others(cache, "image-")
            with _work_folder(cache) as work:
                _make_image(root, wanted, work)
                (work / "image").rename(made)
    return Image(made / "disk", made / "vmlinuz", made / "initrd")


def commit_disk(repository: Path, commit: str, where: Path, only: str) -> Path:
    """A disk with the commit's files and its wheel, built as a user's would be."""
    say(f"packing {commit}")
    folder = where / "commit"
    folder.mkdir()
    archive = subprocess.run(["git", "-C", repository, "archive", commit], check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", folder, "--no-same-owner"], check=True, input=archive.stdout)
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", f"{folder}/wheel", str(folder))
    (folder / "only").write_text(only)
    if only in "packaged@unit":
        _packages(folder)
    disk = where / "commit.img"
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(folder), str(disk), "192M")
    shutil.rmtree(folder)
    return disk


def _packages(folder: Path) -> None:
    """The Debian package, and the same as a later version: what an upgrade goes through is there in full."""
    say("building the Debian package")
    place = folder / "deb"
    place.mkdir()
    _run(f"{folder}/packaging/build-deb", f"{place}/older.deb")
    _run("dpkg-deb", "-R", f"{place}/older.deb", f"{place}/again")
    control = place / "again/DEBIAN/control"
    control.write_text(re.sub(r"^(Version: .*)$", r"\1+newer", control.read_text(), flags=re.M))
    _run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", f"{place}/again", f"{place}/newer.deb")
    shutil.rmtree(place / "again")


def _bootstrap(root: Path) -> None:
    say(f"making a Debian {RELEASE} root folder (a few minutes, once)")
    _run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, str(root), _mirror())
    for deb in (root / "var/cache/apt/archives").glob("*.deb"):
        deb.unlink()


def _make_image(root: Path, wanted: list[str], work: Path) -> None:
    say("making the disk image")
    copy = work / "root"
    _run("cp", "-a", "--reflink=auto", str(root), str(copy))
    for modules in (copy / "lib/modules").iterdir():
        for folder in UNNEEDED_MODULES.split():
            shutil.rmtree(modules / "kernel" / folder, ignore_errors=True)
        _run("chroot", str(copy), "depmod", modules.name)
    for name, text in FILES.items():
        (copy / name).write_text(text)
    (copy / COMMIT.lstrip("/")).mkdir()
    units = copy / "etc/systemd/system"
    for unit in MASKED_UNITS:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (units / "graphical.target.wants").mkdir(exist_ok=True)
    (units / "graphical.target.wants/system-test.service").symlink_to("../system-test.service")
    for user in USERS:
        _run("chroot", str(copy), "useradd", "--create-home", "--shell", "/bin/bash", user)
    _run("chroot", str(copy), "update-initramfs", "-u")
    _install_dependencies(copy, wanted)
    image = work / "image"
    image.mkdir()
    for kind in ("vmlinuz", "initrd.img"):
        (found,) = sorted((copy / "boot").glob(f"{kind}-*"))[-1:]
        shutil.copyfile(found, image / kind.removesuffix(".img"))
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(copy), str(image / "disk"), IMAGE_SIZE)


def _install_dependencies(root: Path, wanted: list[str]) -> None:
    """Wheels are fetched here and installed without network by the image's own Python."""
    say("installing the Python dependencies into it")
    wheels = root / "opt/wheels"
    tags = [f"--platform=manylinux{tag}_x86_64" for tag in ("2014", "_2_17", "_2_28")]
    _run(
        *(sys.executable, "-m", "pip", "download", "-q", "--dest", str(wheels)),
        *("--only-binary=:all:", "--implementation=cp", "--python-version=3.11", *tags),
        *wanted,
    )
    _run("chroot", str(root), "python3", "-m", "venv", VENV)
    pip = ("chroot", str(root), f"{VENV}/bin/pip", "install", "-q", "--no-index", "--find-links=/opt/wheels")
    _run(*pip, *wanted)
    shutil.rmtree(wheels)


def _mirror() -> str:
    """The mirror this host's own packages come from."""
    for path in (*Path("/etc/apt/sources.list.d").glob("*.sources"), Path("/etc/apt/sources.list")):
        if not path.exists():
            continue
        text = path.read_text()
        found = re.search(r"^(?:URIs:|deb(?:\s+\[.*?\])?)\s+(\S+)", text, re.M)
        if found and RELEASE in text:
            return found.group(1)
    raise BuildFailed(f"no mirror of {RELEASE} in this host's apt sources; run this on Debian 12")


def _run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    if command[0] == "chroot":
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C",
            "DEBIAN_FRONTEND": "noninteractive",
        }
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise BuildFailed(f"{' '.join(command[:4])} … ended with {done.returncode}:\n{tail}")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _forget_others(cache: Path, prefix: str) -> None:
    """One of each kind is kept: an image is over a gigabyte."""
    for old in cache.glob(f"{prefix}*"):
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _work_folder(cache: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="work-", dir=cache, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    with open(cache / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
