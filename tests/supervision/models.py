"""Owns a model for supervised runs: a scripted upstream beside a stand, and a configuration that names it.
May touch the stand's folder and the upstream's process, which the stand ends.
Never answers anything but what a healthy provider would.
"""

from __future__ import annotations

from pathlib import Path

from stand import PYTHON, ROOT, Stand, until

UPSTREAM = str(ROOT / "tests/gateway/scripted_upstream.py")

CONFIG = """
[daily]
{daily}

[upstreams.local]
api = "anthropic-messages"
url = "unix:{socket}"

[prices."local/m-1"]
input = "1"
output = "10"
{more}
"""

GATEWAY = """
{limits}
[network]
mode = "gateway"
[gateway]
upstreams = ["local"]
models = ["m-*"]
{more}
"""

CALLER = """
import json, os, signal, sys, time, urllib.error, urllib.request
def call(**more):
    body = {"model": "m-1", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}], **more}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer: return answer.status, answer.read()
    except urllib.error.HTTPError as error: return error.code, error.read()
"""
"""Each answer of the upstream reports 100 tokens of input and 20 of output: 300 micro-dollars."""

CALL_NANOS = 100 * 1000 + 20 * 10_000

UNTIL_REFUSED = f"""{CALLER}
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
while True:
    status, said = call()
    print(status, flush=True)
    if status != 200:
        print(json.loads(said)["error"]["message"], flush=True)
        signal.sigwait([signal.SIGTERM])  # what it was told is said before it ends
        sys.exit()
"""


def with_model(
    place: Stand,
    *,
    daily: str = "",
    more: str = "",
    interval_s: float = 0.0,
    words: int = 20,
    reported_input: int = 100,
) -> None:
    """Start an upstream and write the configuration that names it."""
    socket = place.folder / "model.sock"
    argv = [PYTHON, UPSTREAM, "--socket", str(socket), "--words", str(words)]
    place.spawn_program([*argv, "--interval", str(interval_s), "--input", str(reported_input)])
    until(socket.exists, "no upstream came up")
    configure(place, CONFIG.format(daily=daily, socket=socket, more=more))


def configure(place: Stand, text: str) -> Path:
    path = place.folder / "config.toml"
    path.write_text(text)
    place.environment["SUPERVISOR_CONFIG"] = str(path)
    return path


def gateway_profile(place: Stand, limits: str = "", more: str = "") -> str:
    """A profile with the gateway; limits are lines of [limits], more is of [gateway] and after."""
    return place.profile(stop_grace="10s", more=GATEWAY.format(limits=limits, more=more))
