"""Owns putting the program that tries to get out together: one text that needs nothing but Python.
May touch the sources beside it, read-only.
Never imports them here: they are for the inside of a box.
"""

from __future__ import annotations

from importlib.resources import files

_PARTS = ("base", "kernel", "identity", "reach", "files", "given", "running")


def program() -> str:
    """The whole, for `python3 -c`: JSON of the witnesses, JSON of the attempts, how many at a time."""
    folder = files("sandbox.probes").joinpath("inside")
    texts = [folder.joinpath(f"{part}.py").read_text(encoding="utf-8") for part in _PARTS]
    return "from __future__ import annotations\n" + "\n".join(map(_without_own_imports, texts)) + "\nmain()\n"


def _without_own_imports(text: str) -> str:
    """The parts import from each other where they are checked; put together they need not."""
    kept, skipping = [], False
    for line in text.splitlines():
        if line.startswith(("from sandbox.", "from __future__")):
            skipping = line.rstrip().endswith("(")
        elif skipping:
            skipping = not line.startswith(")")
        else:
            kept.append(line)
    return "\n".join(kept)
