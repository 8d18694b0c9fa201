"""Owns the most tokens that a request can make its provider read, before anybody has read it.
May touch nothing but the memory it is given.
Never counts what is likely: a bound is above whatever a tokenizer of bytes can make of the request.

A tokenizer that works on bytes makes at most one token of each, so UTF-8 bytes bound the tokens of a
text. A request is rendered before it is read; our bound of a part is the length of its compact JSON
plus one for each comma and colon, because some renderers put a space after those. Quotes, braces and
names of a JSON message are longer than the marks that a chat template puts in their place; SLACK_MESSAGE
is added for templates that say more, SLACK_CALL for the instructions that providers add of their own
(the largest documented one, for tools, is below 1,000 tokens; see SLACK_TOOLS).

Assumed: no template writes a text twice or escapes letters that are not ASCII; hidden reasoning that
comes back encrypted has a byte for each of its tokens (it is base64 of more than a byte per token even
if it was compressed four to one).

Memory: the provider reported N tokens for an earlier call of the run with the same model, the same
head (everything but messages, sampling and bookkeeping) and messages 1..k. A call whose first k
messages are the same reads at most N plus the bound of what follows. Templates put a mark between
messages that no token crosses; for one that does not, a token differs at most at the seam, which is in
SLACK_CALL. Providers may leave earlier parts out (old thinking), which only makes it fewer. Where they
choose anew what to leave out of one and the same prefix (truncation, cleared tool uses), the reader of
the request does not refine.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from supervisor.gateway.calls import ModelCall
from supervisor.gateway.strict import bad_request

SLACK_CALL = 512
SLACK_TOOLS = 1024
SLACK_MESSAGE = 8
MEMORY_ENTRIES = 512
_BYTES_PER_TOKEN_AT_MOST = 24
"""A report of fewer tokens than this is not learned: some servers count only what was not cached."""

_encode = msgspec.json.Encoder().encode


class Part(NamedTuple):
    """One message, or the head: text is its compact JSON, key what it is known by.

    tokens: the most it can be.
    """

    text: bytes
    key: bytes
    tokens: int


def encoded(value: Any) -> bytes:
    """Compact JSON. Refuses (400) text that no UTF-8 can hold."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        raise bad_request("the body holds half a surrogate pair, or a number out of range") from None


def token_bound(text: bytes) -> int:
    """The most tokens of a part that is this JSON."""
    return len(text) + text.count(b",") + text.count(b":")


def part_of(value: Any, *, known_as: Any = None, more: int = 0, opaque: int = 0) -> Part:
    """A part and its bound. known_as: the same without what moves between calls.

    more: tokens stated for what the bytes do not bound (an image). opaque: bytes of such things,
    which are no text.
    """
    text = encoded(value)
    key = text if known_as is None or known_as is value else encoded(known_as)
    return Part(text, key, token_bound(text) - opaque + more)


def prefixes_of(model: str, head: Part, messages: Sequence[Part]) -> tuple[bytes, ...]:
    """One digest for the head and one for each message, each of all that comes up to there."""
    digest = blake2b(b"%d:%b" % (len(model), model.encode("utf-8", "replace")), digest_size=16)
    found = []
    for part in (head, *messages):
        # The length first: no two sequences of parts are the same bytes.
        digest.update(b"%d:" % len(part.key))
        digest.update(part.key)
        found.append(digest.digest())
    return tuple(found)


class BoundMemory:
    """What a run's provider said about prompts. One per run; at most MEMORY_ENTRIES of the latest.

    Requests are read in a thread, answers learned from in the loop.
    """

    def __init__(self, entries: int = MEMORY_ENTRIES) -> None:
        self._entries = entries
        self._tokens: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    def bound(self, prefixes: Sequence[bytes], head: Part, messages: Sequence[Part], slack: int) -> int:
        """The most tokens of input. prefixes as of prefixes_of; () for a call that is not refined."""
        whole = head.tokens + slack + sum(part.tokens + SLACK_MESSAGE for part in messages)
        following = 0
        for at in range(len(prefixes) - 1, 0, -1):
            known = self._known(prefixes[at])
            if known is not None:
                return min(whole, known + following + slack)
            following += messages[at - 1].tokens + SLACK_MESSAGE
        return whole

    def _known(self, prefix: bytes) -> int | None:
        with self._lock:
            known = self._tokens.get(prefix)
            if known is not None:
                self._tokens.move_to_end(prefix)
            return known

    def learn(self, call: ModelCall, total_input_tokens: int) -> None:
        """A provider reported that many tokens of input, cached or not, for that call.

        A call whose tools ran at the provider is not learned from: its count is of several rounds.
        """
        if not call.prefixes or call.tools or total_input_tokens <= 0:
            return
        if total_input_tokens < call.input_bound // _BYTES_PER_TOKEN_AT_MOST:
            return
        last = call.prefixes[-1]
        with self._lock:
            self._tokens[last] = max(total_input_tokens, self._tokens.get(last, 0))
            self._tokens.move_to_end(last)
            while len(self._tokens) > self._entries:
                self._tokens.popitem(last=False)


def without(source: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The same object without some of its fields."""
    return {name: value for name, value in source.items() if name not in names}
