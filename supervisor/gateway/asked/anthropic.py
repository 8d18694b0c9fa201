"""Owns reading requests to Anthropic's Messages API, and setting their output bound.
May touch nothing.
Never forwards a field that changes the price, runs something at the provider, or names stored input.
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
from supervisor.gateway.bounds import SLACK_TOOLS, Part, part_of, token_bound, without
from supervisor.gateway.calls import ModelCall
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

LEAST_THINKING = 1024
"""The least budget_tokens there is (anthropic 2.14.0, types/thinking_config_enabled_param.py)."""
LEAST_WITH_THINKING = LEAST_THINKING + 256

_REFUSED = {
    "fallbacks": "another model would answer",
    "mcp_servers": "its tools run at the provider",
    "container": "it runs code at the provider",
    "thread": "its messages are stored at the provider",
    "compaction": "it is billed beside the answer",
    "billing_policy": "it changes who pays",
}
_NOT_READ = frozenset(
    "model max_tokens messages stream metadata temperature top_p top_k stop_sequences service_tier "
    "diagnostics inference_geo speed cache_control".split()
)
"""What no token of the prompt comes from: when it changes, earlier counts stay right."""
_CLIENT_TOOLS = ("bash_2", "text_editor_2", "memory_2", "computer_2")
_TEXT_BLOCKS = frozenset(
    "text thinking redacted_thinking tool_use server_tool_use search_result tool_reference tool_removal "
    "fallback web_search_tool_result mcp_tool_use mcp_tool_result tool_search_tool_result "
    "code_execution_tool_result bash_code_execution_tool_result "
    "text_editor_code_execution_tool_result advisor_tool_result".split()
)
_HEADER = "x-anthropic-billing-header:"
"""Claude Code's system prompt begins with a block that says this and can change with every call."""


def read(document: dict[str, Any], allow: Allowances) -> Asked:
    """Raises CallRefused. Fields are of anthropic-sdk-python, types/beta/message_create_params.py."""
    refuse_given(document, _REFUSED, "not_metered")
    refuse_tier(document.get("service_tier"), frozenset({None, "auto", "standard_only"}), "service_tier")
    refuse_tier(document.get("speed"), frozenset({None, "standard"}), "speed")
    refuse_tier(document.get("inference_geo"), frozenset({None, "global", "not_available"}), "inference_geo")
    asked = whole_number(document, "max_tokens", 0)
    budget = whole_number(nested(document, "thinking"), "budget_tokens", LEAST_THINKING)
    refine = _edits_leave_prefixes(document)
    document, uses, slack = _tools(document, allow)
    head, changing = _head(document, allow)
    messages = [_message(member(one, "messages"), allow) for one in listed(document, "messages")]
    top = part_of(document.get("cache_control"))
    cached = top.text != b"null" or says((head, *messages), b'"cache_control"')
    longest = CacheWrite.ONE_HOUR if says((top, head, *messages), b'"1h"') else CacheWrite.FIVE_MINUTES
    return Asked(
        document=document,
        model=model_of(document),
        stream=flag(document, "stream"),
        head=head,
        messages=messages,
        output_asked=asked,
        output_least=0 if asked == 0 else 1 if budget is None else LEAST_WITH_THINKING,
        cache_write=longest if cached else CacheWrite.NONE,
        slack=slack + changing,
        refine=refine,
        uses=uses,
        rounds=1 + sum(uses.values()),
        per_round=allow.document_tokens or 0,
    )


def bound_output(call: ModelCall, document: dict[str, Any], tokens: int) -> None:
    """Sets max_tokens, and lowers thinking.budget_tokens with it, which must stay below it."""
    document["max_tokens"] = tokens
    thinking = nested(document, "thinking")
    budget = whole_number(thinking, "budget_tokens", LEAST_THINKING)
    if budget is not None and call.output_asked is not None and tokens < call.output_asked:
        share = min(budget, tokens * budget // call.output_asked, tokens - 1)
        document["thinking"] = thinking | {"budget_tokens": max(LEAST_THINKING, share)}


def _edits_leave_prefixes(document: dict[str, Any]) -> bool:
    """Whether what the provider reads of some first messages only gets less when more follow."""
    kept = True
    for edit in listed(nested(document, "context_management"), "edits"):
        kind = kind_of(member(edit, "edits"))
        if kind == "clear_tool_uses_20250919":
            kept = False
        elif kind != "clear_thinking_20251015":
            raise not_metered("not_metered", f"the edit {kind[:40]!r} is not forwarded: it may be billed")
    return kept


def _tools(document: dict[str, Any], allow: Allowances) -> tuple[dict[str, Any], dict[str, int], int]:
    """The request with the uses of provider tools bounded, those uses, and slack for instructions."""
    tools = listed(document, "tools")
    uses: dict[str, int] = {}
    bounded: list[dict[str, Any]] = []
    slack = SLACK_TOOLS if tools else 0
    for item in tools:
        tool = member(item, "tools")
        name = _search_name(tool)
        if name is None:
            slack += _own_tool(tool)
            bounded.append(tool)
            continue
        if name in uses:
            raise bad_request(f"the tool {name} is given twice")
        most = search_uses(name, allow)
        uses[name] = min(most, whole_number(tool, "max_uses", 1) or most)
        bounded.append(tool | {"max_uses": uses[name]})
    return (document | {"tools": bounded} if uses else document), uses, slack


def _search_name(tool: dict[str, Any]) -> str | None:
    kind = kind_of(tool)
    return next((name for name in ("web_search", "web_fetch") if kind.startswith(f"{name}_2")), None)


def _own_tool(tool: dict[str, Any]) -> int:
    """Slack of a tool that the client runs; those of Anthropic's making bring instructions along."""
    kind = kind_of(tool, "custom")
    if kind == "custom":
        return 0
    if kind.startswith(_CLIENT_TOOLS):
        return SLACK_TOOLS
    raise not_metered("unbounded_tool", f"the tool {kind[:40]!r} is not forwarded: it runs at the provider")


def _head(document: dict[str, Any], allow: Allowances) -> tuple[Part, int]:
    """All that is read but the messages, and the tokens in it that no earlier count vouches for."""
    whole = without(document, _NOT_READ)
    known, changing = dict(whole), 0
    inputs = Inputs(allow)
    system = whole.get("system")
    if isinstance(system, list):
        _blocks(system, inputs)
        kept = []
        for block in system:
            if _is_header(block):
                changing += token_bound(part_of(block).text)
            else:
                kept.append(_unmarked(block))
        known["system"] = kept
    elif system is not None and not isinstance(system, str):
        raise bad_request("system must be a string or a list")
    if isinstance(whole.get("tools"), list):
        known["tools"] = [_unmarked(tool) for tool in whole["tools"]]
    return part_of(whole, known_as=known, more=inputs.more, opaque=inputs.opaque), changing


def _message(message: dict[str, Any], allow: Allowances) -> Part:
    content = message.get("content")
    if not isinstance(content, list):
        if content is not None and not isinstance(content, str):
            raise bad_request("content must be a string or a list")
        return part_of(message)
    inputs = Inputs(allow)
    _blocks(content, inputs)
    known: Any = [_unmarked(block) for block in content]
    if len(known) == 1 and known[0].keys() == {"type", "text"} and isinstance(known[0]["text"], str):
        # A text alone and a list with it are the same prompt; clients change one to the other to mark it.
        known = known[0]["text"]
    return part_of(message, known_as=message | {"content": known}, more=inputs.more, opaque=inputs.opaque)


def _is_header(block: dict[str, Any]) -> bool:
    text = block.get("text")
    return block.keys() <= {"type", "text"} and isinstance(text, str) and text.startswith(_HEADER)


def _unmarked(block: dict[str, Any]) -> dict[str, Any]:
    """Without the cache marks, which move from message to message. Only where the API has them."""
    if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        block = block | {"content": [_unmarked(inner) for inner in block["content"]]}
    if "cache_control" in block:
        return {name: value for name, value in block.items() if name != "cache_control"}
    return block


def _blocks(content: object, inputs: Inputs) -> None:
    if isinstance(content, list):
        for item in content:
            _block(member(item, "content"), inputs)


def _block(block: dict[str, Any], inputs: Inputs) -> None:
    kind = kind_of(block)
    if kind == "tool_result":
        _blocks(block.get("content"), inputs)
    elif kind == "image":
        source = nested(block, "source")
        inputs.image(source.get("data") if source.get("type") == "base64" else None)
    elif kind == "document":
        _document(nested(block, "source"), inputs)
    elif kind == "web_fetch_tool_result":
        fetched = nested(block, "content").get("content")
        if fetched is not None:
            _block(member(fetched, "content"), inputs)
    elif kind == "compaction":
        _blocks(block.get("tool_changes"), inputs)
    elif kind == "tool_addition":
        definition = nested(nested(block, "tool"), "definition")
        if definition:
            inputs.more += _own_tool(definition)
    elif kind not in _TEXT_BLOCKS:
        refuse_media(f"a block of type {kind[:40]!r}")


def _document(source: dict[str, Any], inputs: Inputs) -> None:
    kind = kind_of(source)
    if kind == "content":
        _blocks(source.get("content"), inputs)
    elif kind != "text":
        inputs.document(source.get("data") if kind == "base64" else None)
