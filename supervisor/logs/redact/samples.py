"""Owns making up text of a documented form: "ghp_{b62:36}" becomes a token that nobody ever issued.
May touch nothing.
Never makes a credential: what stands in for one comes from a random generator, and no file holds it.
"""

from __future__ import annotations

import base64
import random
import re
import string

_HEX = string.digits + "abcdef"
_B62 = string.ascii_letters + string.digits
ALPHABETS = {
    "b62": _B62,
    "url": _B62 + "_-",
    "b64": _B62 + "+/",
    "hex": _HEX,
    "HEX": _HEX.upper(),
    "dig": string.digits,
    "up": string.ascii_uppercase + string.digits,
    "low": string.ascii_lowercase + string.digits,
    "letters": string.ascii_letters,
    "b32": string.ascii_uppercase + "234567",
    "b32low": string.ascii_lowercase + "234567",
    "bech": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
}
_PART = re.compile(r"\{(uuid|userpass64|nl|(\w+):(\d+)(?:-(\d+))?)\}")


def sample(template: str, seed: int | str) -> str:
    """The template with every {class:n} or {class:n-m} filled in. The same seed gives the same text.

    {uuid} is a version 4 UUID, {userpass64} the base64 of user:password, {nl} a line break.
    """
    return filled(template, seed)[0]


def filled(template: str, seed: int | str) -> tuple[str, list[str]]:
    """As sample, and what was made up in it."""
    chance = random.Random(f"{seed}:{template}")
    made: list[str] = []

    def fill(part: re.Match[str]) -> str:
        if part[1] == "nl":
            return "\n"
        if part[1] == "uuid":
            digits = "".join(chance.choices(_HEX, k=32))
            made.append(f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}")
            return made[-1]
        if part[1] == "userpass64":
            made.append(base64.b64encode(f"robot:{''.join(chance.choices(_B62, k=18))}".encode()).decode())
            return made[-1]
        length = chance.randint(int(part[3]), int(part[4] or part[3]))
        made.append(_mixed(ALPHABETS[part[2]], length, chance))
        return made[-1]

    return _PART.sub(fill, template), made


def _mixed(alphabet: str, length: int, chance: random.Random) -> str:
    """Letters and digits both where the alphabet has both, as good as every real token has them;
    a token does not begin or end with what would end it."""
    while True:
        text = "".join(chance.choices(alphabet, k=length))
        kinds = [kind for kind in (string.digits, string.ascii_letters) if set(kind) & set(alphabet)]
        ends_well = not set(text[:1] + text[-1:]) & set("_-+/")
        if length < 4 or (ends_well and all(set(kind) & set(text) for kind in kinds)):
            return text
