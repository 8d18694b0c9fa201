"""Owns text that holds no credential and looks as if it might: hashes, identifiers, lock files, code, prose.
May touch the sources of the standard library, read-only.
Never holds anything a person would want taken out.
"""

from __future__ import annotations

import base64
import json
import random
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.logs.redact.samples import sample

_EN = (
    "the of and to in is that it was for on are as with they at be this have from or one had by word "
    "but not what all were password token key"
)
_DE = (
    "der die das und ist nicht mit auf für ein eine dem den von zu sich des auch werden über "
    "Schlüssel Passwort Zugang "
    "Geheimnis Anmeldung Kennwort bitte ändern Datei Benutzer"
)
_FR = (
    "le la les de des et est une dans pour que qui avec sur pas plus jeton clé secret mot de passe "
    "utilisateur accès "
    "fichier modifier connexion été même où"
)


def _hex(chance: random.Random, length: int) -> str:
    return f"{chance.getrandbits(4 * length):0{length}x}"


def _hashes(chance: random.Random) -> str:
    kind = chance.randrange(5)
    digest = _hex(chance, (40, 64, 7, 32, 128)[kind])
    return chance.choice(
        ("commit {}", "index {}..", "sha256:{}", 'etag: "{}"', "HEAD is now at {} fix", "{}  file.tar")
    ).format(digest)


def _uuids(chance: random.Random) -> str:
    one = sample("{uuid}", chance.getrandbits(60))
    return chance.choice(
        ('"id": "{}"', "request_id={}", "trace {} done", "/v1/items/{}/parts", "tool_use_id: {}")
    ).format(one)


def _lock_files(chance: random.Random) -> str:
    digest = base64.b64encode(chance.randbytes(64)).decode()
    return chance.choice(
        (
            f'      "integrity": "sha512-{digest}",',
            f'      "resolved": "https://example.com/left-pad/-/left-pad-1.3.{chance.randrange(9)}.tgz",',
            f'    {{file = "x-1.0-py3-none-any.whl", hash = "sha256:{_hex(chance, 64)}"}},',
            f'checksum = "{_hex(chance, 64)}"',
            f'  version "7.{chance.randrange(30)}.0"',
            f"golang.org/x/net v0.1.{chance.randrange(30)} "
            f"h1:{base64.b64encode(chance.randbytes(32)).decode()}",
        )
    )


def _code() -> list[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    names = (
        "secrets",
        "getpass",
        "netrc",
        "http/cookies",
        "tokenize",
        "ssl",
        "hmac",
        "smtplib",
        "token",
        "keyword",
    )
    return [line for name in names for line in (folder / f"{name}.py").read_text().splitlines()]


_SNIPPETS = (
    "const token = await getToken(userId);",
    "token: string;",
    "password: z.string().min(8),",
    "self.password = password",
    "if (password !== confirmPassword) {",
    "api_key = os.environ['API_KEY']",
    "apiKey: process.env.API_KEY,",
    "password=getpass.getpass('Password: ')",
    "secret = settings.SECRET_KEY",
    "def check_token(token: str) -> bool:",
    "Authorization: `Bearer ${token}`",
    'headers = {"Authorization": f"Bearer {token}"}',
    "key=lambda item: item.name2,",
    "usage: {input_tokens: 1234567890, output_tokens: 12345678}",
    "max_tokens = 4096_0000",
    "cache_key = f'{user}:{page2}'",
    "primary_key: bigserial",
    "foreign_key=User.id",
    "public_key = load_pem_public_key(data1)",
    "passed=12 failed=0",
    "postgres://localhost:5432/app",
    "postgresql://user:password@localhost/db",
    "https://example.com/@scope/package2",
    "git@example.com:team/project2.git",
    "password: ${{ secrets.DEPLOY_PASSWORD }}",
    "PASSWORD=$(cat /run/secrets/db)",
    "risk-adjusted-return-for-the-portfolio-2024",
    "task-force-of-the-long-named-project-2024",
    "<your-api-key-here-123>",
    "tokenizer.encode(text1, add_special_tokens=False)",
    "password_hash_algorithm = argon2id",
    "curl -u $USER:$PASS https://x",
    "SECRET_NAME=my-app-secret-name",
    "secretKeyRef: {name: db-secret, key: password}",
    "token_count: 123456",
)


def _source(chance: random.Random, code: list[str]) -> str:
    return chance.choice(_SNIPPETS) if chance.random() < 0.5 else chance.choice(code)


def _minified(chance: random.Random) -> str:
    names = [chance.choice("abcdefghijklmnopqrstuvwxyz") + chance.choice("eiou0123") for _ in range(40)]
    calls = (
        f"function {n}(e,t){{return e.{m}(t)?t.key===e.key:"
        f"e.token=t.password||{n}.{m}}}var {m}=/\\/[a-z]+={n}/g;"
        for n, m in zip(names, reversed(names), strict=True)
    )
    return "!" + "".join(calls)


def _image(chance: random.Random) -> str:
    return (
        "data:image/png;base64," + base64.b64encode(chance.randbytes(chance.randrange(3000, 40000))).decode()
    )


def _prose(words: str) -> Callable[[random.Random], str]:
    known = words.split()

    def make(chance: random.Random) -> str:
        text = " ".join(chance.choices(known, k=chance.randrange(8, 60)))
        label = chance.choice(("Password:", "Token:", "Secret:", "—"))
        return f"{text[:1].upper()}{text[1:]}. {label} {chance.choice(known)}"

    return make


def kinds() -> dict[str, Callable[[random.Random], str]]:
    """A maker of one text per kind."""
    code = _code()
    return {
        "git hashes": _hashes,
        "UUIDs": _uuids,
        "lock files": _lock_files,
        "source code": lambda chance: _source(chance, code),
        "minified JavaScript": _minified,
        "base64 images": _image,
        "prose, English": _prose(_EN),
        "prose, German": _prose(_DE),
        "prose, French": _prose(_FR),
    }


def clean_lines(each: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """(kind, log line): plain, and in a JSON string."""
    for kind, make in kinds().items():
        chance = random.Random(f"{seed}:{kind}")
        for number in range(each):
            text = make(chance)
            yield (
                kind,
                json.dumps({"text": text}).encode() if number % 2 else text.replace("\n", " ").encode(),
            )
