"""Owns the rules about what a run can reach: models, upstreams, tools that run at a provider.
May touch nothing: profile and configuration are arguments.
Never asks an upstream.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator

from supervisor.agents import KINDS
from supervisor.errors import UsageError
from supervisor.gateway.upstreams import BUILT_IN, resolve
from supervisor.profile.lint.model import Domain, Found, Severity, Subject, rule

_NET = Domain.NETWORK
_MODELS = ("gateway", "models")
_UPSTREAMS = ("gateway", "upstreams")
_TOOLS = ("gateway", "tool_uses")
_MOST_OUTPUT = 65_536
_MOST_DOCUMENT = 1_000_000
_SEARCHES = frozenset({"web_search", "web_fetch"})


def _gateway(subject: Subject) -> bool:
    return subject.profile.network.mode == "gateway"


@rule(
    "N-01",
    Severity.HIGH,
    _NET,
    "every model of an upstream is allowed",
    why="the dearest one is among them, and whatever the provider adds tomorrow",
    fix='name the models, like models = ["claude-sonnet-*"]',
)
def any_model(subject: Subject) -> Iterator[Found]:
    for pattern in subject.profile.gateway.models:
        if not pattern.strip("*?"):
            yield Found(f"the pattern {pattern} matches every name", _MODELS, pattern)


@rule(
    "N-02",
    Severity.LOW,
    _NET,
    "a pattern of models is very wide",
    why="families hold models whose prices differ a hundredfold",
    fix="write more of the name",
)
def wide_pattern(subject: Subject) -> Iterator[Found]:
    for pattern in subject.profile.gateway.models:
        fixed = pattern.split("*")[0].split("?")[0]
        if pattern.strip("*?") and len(fixed) < 4 and set(pattern) & set("*?"):
            yield Found(f"the pattern {pattern} fixes {len(fixed)} characters", _MODELS, pattern)


@rule(
    "N-03",
    Severity.HIGH,
    _NET,
    "a tool that searches or fetches from the web is allowed",
    why="it runs at the provider with a network: what it is asked to look up leaves the box",
    fix="take it out of gateway.tool_uses",
)
def web_tools(subject: Subject) -> Iterator[Found]:
    for name, most in subject.profile.gateway.tool_uses.items():
        if name in _SEARCHES and most > 0:
            yield Found(f"{name} may be used {most} times in each call", (*_TOOLS, name), name)


@rule(
    "N-04",
    Severity.MEDIUM,
    _NET,
    "a tool that runs at the provider may be used very often",
    why="each use is billed, and brings further input into the same call",
    fix="allow as many uses as one answer needs",
)
def many_tools(subject: Subject) -> Iterator[Found]:
    for name, most in subject.profile.gateway.tool_uses.items():
        if most > 20:
            yield Found(f"{name} may be used {most} times in each call", (*_TOOLS, name), name)


@rule(
    "N-05",
    Severity.MEDIUM,
    Domain.LIMITS,
    "more is held for an image or a document than any model reads",
    why="a call that holds that much is refused by every cap, or the cap is too large to be one",
    fix="state what the provider's page says of one image or document",
)
def large_allowance(subject: Subject) -> Iterator[Found]:
    gateway = subject.profile.gateway
    for key, tokens in (("image_tokens", gateway.image_tokens), ("document_tokens", gateway.document_tokens)):
        if tokens is not None and tokens > _MOST_DOCUMENT:
            yield Found(f"{tokens} tokens for one", ("gateway", key), str(tokens))


@rule(
    "N-06",
    Severity.HIGH,
    Domain.LIMITS,
    "images or documents are allowed at no tokens",
    why="their tokens are then not in what is held, and a call can cost more than that",
    fix="state what the provider's page says of one, or leave the key out to refuse them",
)
def free_allowance(subject: Subject) -> Iterator[Found]:
    gateway = subject.profile.gateway
    for key, tokens in (("image_tokens", gateway.image_tokens), ("document_tokens", gateway.document_tokens)):
        if tokens == 0:
            yield Found(f"gateway.{key} is 0", ("gateway", key))


@rule(
    "N-07",
    Severity.LOW,
    _NET,
    "no agent program is named",
    why="a program that is not pointed at the gateway tries to reach others and fails slowly",
    fix="set agent.kind; `supervisorctl agents` lists them",
)
def no_kind(subject: Subject) -> Iterator[Found]:
    if _gateway(subject) and not subject.profile.agent.kind:
        yield Found("agent.kind is not set", ("network", "mode"))


@rule(
    "N-08",
    Severity.MEDIUM,
    _NET,
    "an agent program is named, but there is no gateway",
    why="its settings are not applied, and it cannot reach a model",
    fix='write mode = "gateway" in [network], or take agent.kind out',
)
def kind_without_gateway(subject: Subject) -> Iterator[Found]:
    if subject.profile.agent.kind and not _gateway(subject):
        yield Found(f"agent.kind is {subject.profile.agent.kind}, network.mode is none", ("agent", "kind"))


@rule(
    "N-09",
    Severity.LOW,
    Domain.LIMITS,
    "calls may be cut to answers of no length",
    why="an agent that gets two tokens an answer uses up its calls without doing anything",
    fix="leave gateway.least_output_tokens at 256, or set what the agent can work with",
)
def no_least_output(subject: Subject) -> Iterator[Found]:
    if _gateway(subject) and subject.profile.gateway.least_output_tokens < 16:
        yield Found(
            f"gateway.least_output_tokens is {subject.profile.gateway.least_output_tokens}",
            ("gateway", "least_output_tokens"),
        )


@rule(
    "N-10",
    Severity.LOW,
    Domain.LIMITS,
    "one answer may be very long",
    why="the whole of it is held before each call, and little else fits under a cap beside it",
    fix="set limits.output_tokens_per_call to what an answer needs",
)
def long_answers(subject: Subject) -> Iterator[Found]:
    tokens = subject.profile.limits.output_tokens_per_call
    if _gateway(subject) and tokens > _MOST_OUTPUT:
        yield Found(f"{tokens} tokens", ("limits", "output_tokens_per_call"), str(tokens))


@rule(
    "N-11",
    Severity.HIGH,
    _NET,
    "an upstream is not configured",
    why="no run of this profile starts",
    fix="add [upstreams.NAME] to the configuration",
    looks_at="config",
)
def unknown_upstream(subject: Subject) -> Iterator[Found]:
    assert subject.config is not None
    for name in subject.profile.gateway.upstreams:
        if name not in subject.config.upstreams:
            known = " (built in, but it has no key)" if name in BUILT_IN else ""
            yield Found(f"{name} is not in the configuration{known}", _UPSTREAMS, name)


@rule(
    "N-12",
    Severity.HIGH,
    Domain.SECRETS,
    "an upstream is called over plain HTTP beyond this host",
    why="the provider's key and every prompt can be read on the way",
    fix="use https://, a unix socket, or a server on this host",
    looks_at="config",
)
def plain_http(subject: Subject) -> Iterator[Found]:
    assert subject.config is not None
    for name in subject.profile.gateway.upstreams:
        upstream = subject.config.upstreams.get(name)
        parts = urllib.parse.urlsplit(upstream.url) if upstream else None
        if parts and parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            yield Found(f"{name} is at {upstream.url if upstream else ''}", _UPSTREAMS, name)


@rule(
    "N-13",
    Severity.HIGH,
    _NET,
    "no upstream of this profile speaks what its agent program speaks",
    why="every call of it is refused",
    fix="name an upstream with that API; `supervisorctl agents` says which",
    looks_at="config",
)
def other_api(subject: Subject) -> Iterator[Found]:
    assert subject.config is not None
    kind = KINDS.get(subject.profile.agent.kind)
    if kind is None or kind.speaks == "any" or not _gateway(subject):
        return
    wanted = kind.speaks.split(" or ")
    named = {name: subject.config.upstreams.get(name) for name in subject.profile.gateway.upstreams}
    try:
        services = resolve({name: upstream for name, upstream in named.items() if upstream is not None})
    except UsageError:
        return
    if services and not any(str(api) in wanted for service in services.values() for api in service.apis):
        yield Found(f"{kind.name} speaks {kind.speaks}", ("agent", "kind"), kind.name)
