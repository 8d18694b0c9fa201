"""Owns attempts on files, one small operation after the other, as a script inside a box.
May touch what its arguments name.
Never judges: each operation answers "ok", what it read, or an errno's name.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys

MARK = b"OWNED"
_libc = ctypes.CDLL(None, use_errno=True)
_EXCHANGE, _WHITEOUT = 2, 4


def _write(path: str, flags: int) -> None:
    fd = os.open(path, os.O_WRONLY | flags, 0o755)
    os.write(fd, MARK)
    os.close(fd)


def _rename2(source: str, target: str, flags: int) -> None:
    if _libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(100).decode(errors="replace")


def _make(path: str) -> None:
    """A file of ours to move about; never one of the attempts."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    _write(path, os.O_CREAT | os.O_TRUNC)


def do(words: list[str]) -> str:
    kind, path, *more = words
    if kind == "create":
        _write(path, os.O_CREAT | os.O_EXCL)
    elif kind == "write":
        _write(path, 0)
    elif kind == "truncate":
        os.truncate(path, 0)
    elif kind == "make":
        _make(path)
    elif kind == "make folder":
        os.makedirs(path, exist_ok=True)
    elif kind == "mkdir":
        os.mkdir(path)
    elif kind == "rmdir":
        os.rmdir(path)
    elif kind == "unlink":
        os.unlink(path)
    elif kind == "rename":
        os.rename(path, more[0])
    elif kind == "exchange":
        _rename2(path, more[0], _EXCHANGE)
    elif kind == "whiteout":
        _rename2(path, more[0], _WHITEOUT)
    elif kind == "link":
        os.link(path, more[0])
    elif kind == "symlink":
        os.symlink(path, more[0])
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "chmod":
        os.chmod(path, 0o777)
    elif kind == "chown":
        os.chown(path, os.getuid(), os.getgid())
    elif kind == "utime":
        os.utime(path, (1, 1))
    elif kind == "xattr":
        os.setxattr(path, "user.x", MARK)
    elif kind == "list":
        return " ".join(sorted(os.listdir(path)))
    elif kind == "read":
        return _read(path)
    else:
        return f"unknown {kind}"
    return "ok"


def main() -> None:
    """Argument: JSON list of operations, each a list of words. Prints a JSON list of answers."""
    answers = []
    for words in json.loads(sys.argv[1]):
        try:
            answers.append(do(words))
        except OSError as error:
            answers.append(errno.errorcode.get(error.errno or 0, str(error)))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
