"""Owns reading requests to OpenAI's Responses API, and setting their output bound.
May touch nothing.
Never forwards what outlives the call, or input that is stored where the gateway cannot see it.
"""

from __future__ import annotations

from typing import Any

from supervisor.gateway.asked.common import (
    Allowances,
    Asked,
    Inputs,
    model_of,
    refuse_media,
    refuse_tier,
    says,
    search_uses,
)
from supervisor.gateway.asked.openai_chat import LONG_WRITES, TIERS, data_url
from supervisor.gateway.bounds import SLACK_TOOLS, Part, part_of, without
from supervisor.gateway.strict import (
    bad_request,
    flag,
    kind_of,
    listed,
    member,
    nested,
    not_metered,
    refuse_given,
    whole_number,
)
from supervisor.limits.pricing import CacheWrite

LEAST_OUTPUT = 16
"""The least max_output_tokens that OpenAI takes."""

_REFUSED = {
    "background": "it would outlive the call",
    "previous_response_id": "its input is stored at the provider",
    "conversation": "its input is stored at the provider",
    "prompt": "its input is stored at the provider",
    "context_management": "it is billed beside the answer",
    "fallbacks": "another model could answer",
    "models": "another model could answer",
    "route": "another model could answer",
    "preset": "another model could answer",
    "provider": "another rate could apply",
    "plugins": "they run at the provider",
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
}
_NOT_READ = frozenset(
    "model input max_output_tokens max_tool_calls stream stream_options temperature top_p top_logprobs user "
    "metadata client_metadata store service_tier prompt_cache_key safety_identifier parallel_tool_calls "
    "include background".split()
)
_TEXT_PARTS = frozenset({"input_text", "output_text", "refusal", "text", "summary_text", "reasoning_text"})
_CALLS = frozenset(
    "function_call custom_tool_call local_shell_call shell_call apply_patch_call computer_call "
    "web_search_call file_search_call tool_search_call program program_output compaction".split()
)
_OUTPUTS = frozenset(
    "function_call_output custom_tool_call_output local_shell_call_output shell_call_output "
    "apply_patch_call_output computer_call_output".split()
)
_CLIENT_TOOLS = frozenset({"function", "custom", "local_shell", "apply_patch"})
_SEARCHES = {
    "web_search": "web_search",
    "web_search_2025_08_26": "web_search",
    "web_search_preview": "web_search",
    "web_search_preview_2025_03_11": "web_search",
    "file_search": "file_search",
}


def read(document: dict[str, Any], allow: Allowances) -> Asked:
    """Raises CallRefused. Fields are of openai-python, types/responses/response_create_params.py.

    store is set to false: what one call leaves at the provider, a later one could make it read again
    without the gateway seeing how much that is.
    """
    refuse_given(document, _REFUSED, "not_metered")
    refuse_tier(document.get("service_tier"), TIERS, "service_tier")
    asked = whole_number(document, "max_output_tokens", 1)
    document = document | {"store": False}
    uses: dict[str, int] = {}
    slack = _tools(listed(document, "tools"), allow, uses)
    given = document.get("input")
    if given is not None and not isinstance(given, str | list):
        raise bad_request("input must be a string or a list")
    items = given if isinstance(given, list) else [{"role": "user", "content": given or ""}]
    messages = [_item(member(item, "input"), allow, uses) for item in items]
    document, uses = _bounded_uses(document, uses)
    head = part_of(without(document, _NOT_READ))
    long_write = says((head, *messages), *LONG_WRITES)
    calls = max(uses.values(), default=0)
    return Asked(
        document=document,
        model=model_of(document),
        stream=flag(document, "stream"),
        head=head,
        messages=messages,
        output_asked=asked,
        output_least=LEAST_OUTPUT,
        cache_write=CacheWrite.ONE_HOUR if long_write else CacheWrite.FIVE_MINUTES,
        slack=slack,
        refine=document.get("truncation") in (None, "disabled"),
        uses=uses,
        rounds=1 + calls,
        per_round=allow.document_tokens or 0,
    )


def bound_output(document: dict[str, Any], tokens: int) -> None:
    document["max_output_tokens"] = tokens


def _bounded_uses(document: dict[str, Any], uses: dict[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
    """max_tool_calls bounds all provider tools together, so any of them can have that many."""
    asked = whole_number(document, "max_tool_calls", 0)
    if not uses:
        return document, uses
    most = min(uses.values())
    calls = most if asked is None else min(most, asked)
    return document | {"max_tool_calls": calls}, dict.fromkeys(uses, calls)


def _tools(tools: list[Any], allow: Allowances, uses: dict[str, int]) -> int:
    """Adds the uses of provider tools; gives slack for instructions about tools."""
    for item in tools:
        tool = member(item, "tools")
        kind = kind_of(tool)
        if kind == "namespace":
            _tools(listed(tool, "tools"), allow, uses)
        elif kind in _SEARCHES:
            uses[_SEARCHES[kind]] = search_uses(_SEARCHES[kind], allow)
        elif kind == "shell":
            if kind_of(nested(tool, "environment"), "local") != "local":
                raise not_metered("unbounded_tool", "a shell at the provider is not forwarded")
        elif kind == "tool_search" and tool.get("execution") == "client":
            continue
        elif kind not in _CLIENT_TOOLS:
            raise not_metered(
                "unbounded_tool", f"the tool {kind[:40]!r} is not forwarded: it runs at the provider"
            )
    return SLACK_TOOLS if tools else 0


def _item(item: dict[str, Any], allow: Allowances, uses: dict[str, int]) -> Part:
    inputs = Inputs(allow)
    kind = kind_of(item, "message")
    if kind in ("message", "reasoning"):
        _parts(item.get("content"), inputs)
    elif kind in _OUTPUTS:
        output = item.get("output")
        if isinstance(output, dict):
            _part(output, inputs)
        elif kind != "shell_call_output":
            _parts(output, inputs)
    elif kind in ("additional_tools", "tool_search_output"):
        inputs.more += _tools(listed(item, "tools"), allow, uses)
    elif kind not in _CALLS:
        refuse_media(f"an item of type {kind[:40]!r}")
    elif kind == "shell_call" and kind_of(nested(item, "environment"), "local") != "local":
        raise not_metered("unbounded_tool", "a shell at the provider is not forwarded")
    return part_of(item, more=inputs.more, opaque=inputs.opaque)


def _parts(content: object, inputs: Inputs) -> None:
    if isinstance(content, list):
        for part in content:
            _part(member(part, "content"), inputs)
    elif content is not None and not isinstance(content, str):
        raise bad_request("content must be a string or a list")


def _part(part: dict[str, Any], inputs: Inputs) -> None:
    kind = kind_of(part)
    if kind in ("input_image", "computer_screenshot"):
        inputs.image(data_url(part.get("image_url")))
    elif kind == "input_file":
        inputs.document(part.get("file_data"))
    elif kind not in _TEXT_PARTS:
        refuse_media(f"a part of type {kind[:40]!r}")
