"""Owns judging a value by the name before it: what is a secret's name, and what cannot be its value.
May touch nothing.
Never takes an expression, a placeholder or a plain word for a secret: those fill every program.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

from supervisor.logs.redact.table import Rule

_SEGMENT = re.compile(rb"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PASSWORD = {b"password", b"passwd", b"pwd", b"passphrase", b"passcode", b"pass"}
_SECRET = {b"secret", b"credential", b"credentials", b"creds", b"cred"}
_TOKEN = {b"token", b"pat", b"jwt", b"bearer", b"authtoken", b"accesstoken"}
_KEYS = {b"apikey", b"accesskey", b"privatekey", b"secretkey", b"authkey", b"accountkey", b"masterkey"}
_QUALIFIERS = set(
    b"api access secret private auth encryption signing master account app application client service shared "
    b"storage subscription deploy license admin consumer webhook ssh hmac session integration aes cipher "
    b"symmetric decryption write ingest server".split()
)
_PRIVATE_MEMBERS = {b"d", b"k"}

_PLACEHOLDER = re.compile(
    rb"(?i)(?:x{3,}|\*{3,}|\.{3,}|your|my[-_]|change|replace|insert|enter|example|dummy|sample|placeholder|todo|fake"
    rb"|none\b|null\b|nil\b|true\b|false\b|undefined|redacted|\[redacted|hidden|secret\b|password\b|passwd\b|token\b"
    rb"|process\.env|os\.environ|env\.|settings\.|config\.|self\.|this\.|args\.|request\.|file:|https?:|/|\./|~/|<|@)"
)
_CODE = re.compile(rb"[(\[{}]|\$\{|\{\{|#\{|%[(s{]|<%|::|->|=>|[=!]=|\.\.\.")
_DOTTED = re.compile(rb"[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+;?")
_VERSION = re.compile(rb"[v^~<>=]*[0-9]+(?:\.[0-9]+)+[\w.+-]*")
_WORDY = re.compile(rb"[A-Za-z\x80-\xff]*+(?:[_ .:/-][A-Za-z\x80-\xff]++)*+[.:!?]?")
_NUMBERED_WORD = re.compile(rb"[A-Za-z]{1,16}[0-9]{1,3}|[A-Za-z]+(?:[_-][A-Za-z]+)+[_-]?[0-9]{1,4}")
_IDENTIFIER = re.compile(
    rb"_*(?:[a-z]+(?:_[a-z0-9]+)*|[a-z]+[0-9]?(?:[A-Z][a-z]+[0-9]?)*|[A-Z]+(?:_[A-Z0-9]+)*|(?:[A-Z][a-z]+[0-9]?)+)[0-9]{0,2}_*"
)
_PLAIN_NAME = re.compile(rb"[A-Za-z_]+[0-9]{0,2}")
_COOKIE = re.compile(rb"cookie[\\\"]{0,3}:[ \t]{0,2}[\\\"]{0,3}[ \t]{0,2}\Z", re.IGNORECASE)
_SETTING = re.compile(rb"[A-Z][A-Z0-9_]*")
_BARE = re.compile(rb"""[^\x00-\x20"'`\\,;&<>\x7f]*""")
_TO_LINE_END = re.compile(rb"""[^\r\n"'`\\]{0,4096}""")
_KEY_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_SPACE_OR_QUOTE = b"\\\"'`[]{ \t"
_LONGEST = 8192


class Value(NamedTuple):
    """Where a value stands in the text, and the rule's id."""

    start: int
    end: int
    rule: str


def segments(key: bytes) -> list[bytes]:
    """The words of a name, whichever way they are joined; numbers at its end do not count."""
    words = [word.lower() for word in _SEGMENT.findall(key)]
    while words and words[-1].isdigit():
        words.pop()
    return words


def kind_of(key: bytes) -> str | None:
    """The rule that a name belongs to when its value looks like a secret."""
    words = segments(key)
    if not words:
        return None
    last, before = words[-1], words[-2] if len(words) > 1 else b""
    joined = before + last
    # Whatever is glued to the front of a name leaves it one.
    if last in _PASSWORD or joined in _PASSWORD or last.endswith((b"password", b"passwd", b"passphrase")):
        return "password-assignment"
    if last in _SECRET or last.endswith(b"secret"):
        return "secret-assignment"
    if last in _TOKEN or last.endswith(b"token"):
        return "token-assignment"
    if (
        last in _KEYS
        or last.endswith(b"apikey")
        or (last == b"key" and before in _QUALIFIERS)
        or (last == b"data" and before == b"key")
    ):
        return "api-key-assignment"
    return "docker-registry-auth" if last == b"auth" else None


def plausible(value: bytes, kind: str, quoted: bool) -> bool:
    """Can it be a secret at all, going by its looks?"""
    strong = kind == "password-assignment"
    if len(value) < (6 if strong and quoted else 8) or _PLACEHOLDER.match(value) or _VERSION.fullmatch(value):
        return False
    if len(set(value)) < 4 or b"[redacted:" in value:
        return False
    if any(byte in b" \t\r\n" for byte in value):
        return False
    if _WORDY.fullmatch(value) or _DOTTED.fullmatch(value):
        return False
    if not strong and _NUMBERED_WORD.fullmatch(value):
        return False
    named_like_code = _PLAIN_NAME if strong else _IDENTIFIER
    if not quoted and (_CODE.search(value) or (len(value) < 16 and named_like_code.fullmatch(value))):
        return False
    if quoted and (b"${" in value or b"{{" in value or b"%(" in value or value[:1] in b"${%"):
        return False
    digits = sum(48 <= byte <= 57 for byte in value)
    if digits == len(value):
        return strong
    if strong:
        return digits > 0 or not value.isalnum()
    return digits > 0 and any(chr(byte).isalpha() for byte in value)


class Names:
    """Judges by the rules of a table."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._special = [r for r in rules if r.kind == "assignment" and r.pattern != ".+"]
        self._headers = [r for r in rules if r.kind == "header"]

    def judge(self, key: bytes, value: bytes, quoted: bool, around: bytes) -> str | None:
        """The rule's id, or None. around: text near the name, in lower case, that may say whose it is."""
        kind = kind_of(key)
        if kind is None:
            if b'"kty"' in around.replace(b"\\", b"") and key in _PRIVATE_MEMBERS and len(value) >= 32:
                return "jwk-private-member"
            return None
        for rule in self._special:
            if any(word in around for word in rule.words) and rule.regex.fullmatch(value):
                if rule.id == "docker-registry-auth" and not _user_and_password(value):
                    continue
                if rule.id == "jwk-private-member" or not _varied(value):
                    continue
                return rule.id
        if kind == "docker-registry-auth" or not plausible(value, kind, quoted):
            return None
        return kind

    def value_at(self, text: bytes, start: int) -> Value | None:
        """text[start:] is the value of an assignment or a header whose name stands before it."""
        before = text[max(0, start - 160) : start]
        stripped = before.rstrip(_SPACE_OR_QUOTE)
        if stripped[-1:] not in (b"=", b":", b">"):
            return None
        stripped = stripped.rstrip(b"=:>").rstrip(_SPACE_OR_QUOTE)
        key = stripped[len(stripped.rstrip(_KEY_CHARACTERS)) :]
        header = self.header(key, text, start)
        if header is None and _COOKIE.search(stripped[: len(stripped) - len(key)]):
            header = self.header(b"cookie", text, start - (len(before) - len(stripped)) - len(key))
        if header is not None:
            return header
        end, quoted = value_end(text, start)
        # Code does not write its variables like this; a shell, a .env file and a connection string do.
        setting = bool(_SETTING.fullmatch(key)) or stripped[: -len(key) or None][-1:] in (b";", b"?", b"&")
        quoted = quoted or (setting and not _CODE.search(text, start, end))
        line = text[max(0, start - 400) : start + 400] if key in _PRIVATE_MEMBERS else before
        rule = self.judge(key, text[start:end], quoted, line.lower())
        return None if rule is None else Value(start, end, rule)

    def header(self, key: bytes, text: bytes, start: int) -> Value | None:
        """The value of an HTTP header, to its end."""
        name = key.lower()
        for rule in self._headers:
            if name.endswith(rule.words):
                whole = _TO_LINE_END.match(text, start)
                assert whole is not None
                found = rule.regex.match(text, start, whole.end())
                if found and _credential(found[0]):
                    return Value(start, found.end(), rule.id)
        return None

    def bearer(self, text: bytes, start: int) -> Value | None:
        """What stands behind the word bearer."""
        match = re.compile(rb"[\w.~+/=:-]{16,8192}").match(text, start)
        if match and _credential(match[0]):
            return Value(start, match.end(), "http-authorization-bearer")
        return None

    def option(self, text: bytes, start: int) -> Value | None:
        """The value behind --password and its like."""
        end, quoted = value_end(text, start)
        before = text[max(0, start - 100) : start].lower()
        kind = "password-assignment" if b"pass" in before[-16:] else "token-assignment"
        if not plausible(text[start:end], kind, quoted):
            return None
        login = b"login" in before and before.rstrip(b" \t\"'\\").endswith(b" password")
        return Value(start, end, "netrc-password" if login else "cli-secret-option")


def value_end(text: bytes, start: int) -> tuple[int, bool]:
    """(end, whether it stood in quotes). An end that is missing is the end of the line."""
    quote = text[start - 1 : start]
    if quote in (b'"', b"'", b"`"):
        escaped = text[start - 2 : start - 1] == b"\\"
        line_end = text.find(b"\n", start, start + _LONGEST)
        line_end = min(len(text), start + _LONGEST) if line_end < 0 else line_end
        at = text.find(b"\\" + quote if escaped else quote, start, line_end)
        while at > 0 and not escaped and text[at - 1 : at] == b"\\" and text[at - 2 : at - 1] != b"\\":
            at = text.find(quote, at + 1, line_end)
        return (at if at >= 0 else line_end), True
    match = _BARE.match(text, start, start + _LONGEST)
    assert match is not None
    end = match.end()
    while end > start and text[end - 1 : end] in (b".", b")", b"]", b"}", b":"):
        end -= 1
    return end, False


def _credential(text: bytes) -> bool:
    """Not only words that say what should stand there."""
    return any(
        len(part) >= 8
        and (any(48 <= byte <= 57 for byte in part) or _user_and_password(part))
        and not _PLACEHOLDER.match(part)
        for part in text.split()
    )


def _varied(value: bytes) -> bool:
    return len(set(value)) >= 6 and any(48 <= byte <= 57 for byte in value)


def _user_and_password(value: bytes) -> bool:
    try:
        return b":" in base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)[1:]
    except (binascii.Error, ValueError):
        return False
