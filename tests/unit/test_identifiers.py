"""Owns run ids and ticket keys.
May touch the clock and randomness through new_ulid.
Never lets a key be a path, an option or an escape sequence.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.errors import UsageError
from supervisor.identifiers import check_ticket, new_ulid

BAD = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc",
    "-x",
    "--all",
    ".hidden",
    "a b",
    "a\n",
    "a\0",
    "\x1b[31m",
    "ü",
    "a" * 121,
]


@pytest.mark.parametrize("key", ["A", "ENG-1234", "a.b_c:d@e+f", "0", "a" * 120])
def test_keys(key: str) -> None:
    assert check_ticket(key) == key


@pytest.mark.parametrize("key", BAD)
def test_what_is_no_key(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_ticket(key)
    assert caught.value.message.isprintable() and caught.value.hint


@settings(deadline=None)
@given(st.text())
def test_no_accepted_key_is_a_path(key: str) -> None:
    try:
        check_ticket(key)
    except UsageError:
        return
    assert "/" not in key and not key.startswith((".", "-")) and key.isascii() and key.isprintable()


def test_run_ids_are_apart_and_sort_by_time() -> None:
    ids = [new_ulid() for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 26 and one.isalnum() and one.isascii() for one in ids)
    assert [one[:10] for one in ids] == sorted(one[:10] for one in ids)


def test_a_child_and_threads_give_out_ids_of_their_own() -> None:
    program = """
import os, threading
from supervisor.identifiers import new_ulid
new_ulid()
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.write(write_end, b" ".join(new_ulid().encode() for _ in range(300)))
    os._exit(0)
os.wait()
found = os.read(read_end, 1 << 16).decode().split()
def take(): found.extend([new_ulid() for _ in range(5000)])
threads = [threading.Thread(target=take) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), len({one[10:] for one in found}))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "20300 20300\n"
