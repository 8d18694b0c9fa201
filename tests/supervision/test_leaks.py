"""Owns that a secret which a run was given is in nothing that the supervisor writes or says of it.
May touch stands, their every file, and an upstream of our own.
Never searches before it has shown that the search finds: a control plants the secret.
"""

from __future__ import annotations

import base64
import os
import urllib.parse
from pathlib import Path

from models import CALLER, GATEWAY, with_model
from stand import PYTHON, Stand

pytest_plugins = ["stand_fixtures"]

SECRET = "S3cr3t/Valu+e-84410273=="
TOKEN = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"

LEAKING = f"""{CALLER}
import base64, shutil, urllib.parse
secret = os.environ["GIVEN"]
token = sys.argv[2][::-1]
where = os.environ["SUPERVISOR_LOG_DIR"]
def forms(s):
    raw = s.encode()
    yield from (s, json.dumps(s), urllib.parse.quote(s, safe=""))
    if s == secret: yield from (raw.hex(), raw.hex().upper())  # what is known is found in hexadecimal too
    yield from (base64.b64encode(b"x" * n + raw).decode() for n in range(3))
    yield base64.urlsafe_b64encode(raw).decode()
    yield json.dumps({{"a": json.dumps({{"b": "x\\n" + s + "\\n"}})}})
    yield "\\x1b[31m" + s + "\\x1b[0m"
    yield f"https://user:{{urllib.parse.quote(s, safe='')}}@host/path"
    yield f"Authorization: Bearer {{s}}"
for s in (secret, token):
    for form in forms(s):
        for out in (sys.stdout, sys.stderr):
            print(form, file=out, flush=True)
            print(json.dumps({{"kind": "note", "text": form, form: 1}}), file=out, flush=True)
    for c in s:
        sys.stdout.write(c); sys.stdout.flush()
    print()
with open(where + "/own.ndjson", "a") as log:
    for s in (secret, token):
        for form in forms(s):
            own = {{"kind": "iteration", "tool": form, "args": {{form: [form]}}, "model": form}}
            tool = {{"type": "tool_use", "id": form, "name": "Bash", "input": {{"command": form}}}}
            said = {{"role": "assistant", "content": [tool]}}
            for line in (own, {{"type": "assistant", "session_id": form, "message": said}}):
                log.write(json.dumps(line) + "\\n")
try: shutil.copy(where + "/own.ndjson", where + "/" + token + ".ndjson")
except OSError as error: print(error)
print(call(model=token), call(model=secret), call(metadata={{"user_id": secret}}))
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/" + urllib.parse.quote(secret, safe="")
try: urllib.request.urlopen(url)
except urllib.error.HTTPError as error: print(error.code, error.read())
raise SystemExit("last words: " + secret + " " + token)
"""


def needles() -> dict[str, bytes]:
    """Long enough to be no accident, short enough to be found when an end is cut off."""
    raw = SECRET.encode()
    return {
        "raw": raw,
        "quoted": urllib.parse.quote(SECRET, safe="").encode(),
        "hex": raw.hex().encode(),
        "HEX": raw.hex().upper().encode(),
        "base64": base64.b64encode(raw)[:-4],
        "token": TOKEN[8:28].encode(),
        **{f"base64 at {n}": base64.b64encode(b"x" * n + raw)[4:-4] for n in (1, 2)},
    }


def found_in(folder: Path) -> set[str]:
    """Every file below, but for the agent's own files in its overlay."""
    found = set()
    for base, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("upper", "work")]
        for name in files:
            path = Path(base, name)
            if path.is_socket() or path.is_fifo():
                continue
            data = path.read_bytes() + os.fsencode(name)
            found |= {
                f"{kind} in {path.relative_to(folder)}" for kind, one in needles().items() if one in data
            }
    return found


def test_control_the_search_finds_what_is_there(place: Stand) -> None:
    for number, needle in enumerate(needles().values()):
        (place.folder / f"planted{number}").write_bytes(b"x" + needle + b"x")
    assert {one.split(" in planted")[0] for one in found_in(place.folder)} == needles().keys()


def test_a_secret_is_in_no_byte_that_the_supervisor_wrote(place: Stand, tmp_path: Path) -> None:
    with_model(place)
    given = tmp_path / "given"
    given.write_text(SECRET)
    own = f'files = ["/run/agent/*.ndjson"]\n[env]\nsecret = {{ GIVEN = "file:{given}" }}'
    profile = place.profile(more=GATEWAY.format(limits="", more=f"[log]\n{own}"))
    command = ("run", "--ticket", "T-leak", "--profile", profile, "--", PYTHON, "-c", LEAKING)
    live = place.ctl(*command, place.marker, TOKEN[::-1])
    assert live.code != 0 and len(place.lines("T-leak")) > 100, live
    said = [live]
    for words in (
        ("logs", "T-leak"),
        ("logs", "T-leak", "--json"),
        ("events", "T-leak"),
        ("events", "T-leak", "--json"),
        ("status", "T-leak"),
        ("status", "T-leak", "--json"),
        ("status", "T-leak", "--attestation"),
        ("ps", "-a", "--json"),
        ("report",),
        ("report", "--json"),
        ("spend", "--json"),
        ("audit", "show", "--json"),
        ("profile", "explain", profile),
    ):
        done = place.ctl(*words)
        assert done.code == 0, (words, done)
        said.append(done)
    for number, done in enumerate(said):
        (place.folder / f"said{number}").write_text(done.out + done.err)
    found = found_in(place.folder)
    assert found == set(), found


def test_one_secret_has_one_marker_in_all_runs(place: Stand) -> None:
    """In a line of the log, and in the words of a command that somebody pasted it into."""
    lines, commands = set(), set()
    for _ in range(2):
        run = place.run_to_end(f"print({TOKEN!r})")
        (line,) = place.lines(run.ticket)
        lines.add(line)
        commands.add(run.command[2])
    (line,), (command,) = lines, commands
    assert line.startswith("[redacted:github-pat#") and command == f"print('{line}')"
