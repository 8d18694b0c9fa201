"""Owns a clean log as coding agents write them: NDJSON with prompts, listings, test runs, hashes, images.
May touch the sources of the standard library, read-only.
Never holds a credential, nor anything drawn from another generator than its own.
"""

from __future__ import annotations

import base64
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_WORDS = (
    "the run a test module of file change that with now reads writes checks returns value error case line "
    "before after function should because which first second queue worker request answer state path"
).split()
_NAMES = "engine queue report parser client server config worker router tokens session cache".split()


def agent_lines(total_bytes: int, seed: int = 1) -> list[bytes]:
    """About so many bytes of lines, always the same for one Python and one seed."""
    chance = random.Random(seed)
    sources = _sources()
    lines: list[bytes] = []
    size = 0
    for number in range(1 << 62):
        line = json.dumps(_event(chance, sources, number), separators=(",", ":")).encode()
        lines.append(line)
        size += len(line) + 1
        if size >= total_bytes:
            return lines
    raise AssertionError


def _sources() -> list[list[str]]:
    folder = Path(sysconfig.get_path("stdlib"))
    names = (
        "argparse",
        "ast",
        "asyncio/base_events",
        "dataclasses",
        "difflib",
        "shutil",
        "tarfile",
        "typing",
    )
    return [(folder / f"{name}.py").read_text().splitlines() for name in names]


def _event(chance: random.Random, sources: list[list[str]], number: int) -> dict[str, object]:
    kind = chance.choices(
        ("say", "read", "git", "tests", "ls", "http", "image"), (30, 25, 8, 14, 12, 10, 0.3)
    )[0]
    text = _TEXTS[kind](chance, sources)
    usage = {"input_tokens": chance.randrange(1 << 16), "output_tokens": chance.randrange(4096)}
    if kind == "say":
        content: object = [{"type": "text", "text": text}]
        return {
            "type": "assistant",
            "message": {
                "id": f"msg_{_hex(chance, 24)}",
                "role": "assistant",
                "content": content,
                "usage": usage,
            },
            "session_id": _uuid(chance),
        }
    content = [{"type": "tool_result", "tool_use_id": f"toolu_{_hex(chance, 24)}", "content": text}]
    return {
        "type": "user",
        "uuid": _uuid(chance),
        "seq": number,
        "message": {"role": "user", "content": content},
    }


def _hex(chance: random.Random, length: int) -> str:
    return "".join(chance.choices("0123456789abcdef", k=length))


def _uuid(chance: random.Random) -> str:
    digits = _hex(chance, 32)
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _path(chance: random.Random) -> str:
    return f"src/{chance.choice(_NAMES)}/{chance.choice(_NAMES)}_{chance.choice(_NAMES)}.py"


def _say(chance: random.Random, _: list[list[str]]) -> str:
    return " ".join(chance.choices(_WORDS, k=chance.randrange(20, 200))) + f" in `{_path(chance)}`.\n"


def _read(chance: random.Random, sources: list[list[str]]) -> str:
    lines = chance.choice(sources)
    first = chance.randrange(max(1, len(lines) - 120))
    shown = lines[first : first + chance.randrange(10, 120)]
    return "\n".join(f"{first + n:6}\t{line}" for n, line in enumerate(shown, 1))


def _git(chance: random.Random, _: list[list[str]]) -> str:
    out = []
    for _number in range(chance.randrange(3, 20)):
        out.append(
            f"\x1b[33mcommit {_hex(chance, 40)}\x1b[m\nAuthor: A Person <person@example.com>\n\n    "
            + " ".join(chance.choices(_WORDS, k=8))
        )
    return "\n\n".join(out)


def _tests(chance: random.Random, _: list[list[str]]) -> str:
    rows = (
        f"{_path(chance)}::test_{chance.choice(_WORDS)}_{chance.choice(_WORDS)} "
        f"\x1b[32mPASSED\x1b[0m [ {n:3}%]"
        for n in range(chance.randrange(5, 60))
    )
    return "\n".join(rows)


def _ls(chance: random.Random, _: list[list[str]]) -> str:
    rows = (
        f"-rw-r--r-- 1 agent agent {chance.randrange(1 << 20):8} Sep  1 02:14 {_path(chance)}"
        for _number in range(chance.randrange(4, 50))
    )
    return "total 48\n" + "\n".join(rows)


def _http(chance: random.Random, _: list[list[str]]) -> str:
    rows = (
        f'10.0.0.{chance.randrange(256)} - - [01/Sep/2026:02:14:{n % 60:02}] "GET https://example.com/'
        f'{chance.choice(_NAMES)}/{chance.randrange(9999)} HTTP/1.1" 200 {chance.randrange(99999)}'
        for n in range(chance.randrange(4, 40))
    )
    return "\n".join(rows)


def _image(chance: random.Random, _: list[list[str]]) -> str:
    return (
        "data:image/png;base64," + base64.b64encode(chance.randbytes(chance.randrange(2000, 90000))).decode()
    )


_TEXTS = {"say": _say, "read": _read, "git": _git, "tests": _tests, "ls": _ls, "http": _http, "image": _image}


def joined(lines: list[bytes], block_bytes: int = 1 << 20) -> Iterator[bytes]:
    """The lines in blocks of about so many bytes, cut at line ends."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line) + 1
        if size >= block_bytes:
            yield b"\n".join(block)
            block, size = [], 0
    if block:
        yield b"\n".join(block)
