"""Owns reading requests to OpenAI's Chat Completions API and to servers that speak it.
May touch nothing.
Never forwards two output bounds that differ, nor a name of a bound that only some servers know.
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
)
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

BOUNDS = ("max_completion_tokens", "max_tokens")
MAX_ANSWERS = 16
TIERS = frozenset({None, "auto", "default", "standard", "flex"})
LONG_WRITES = (b'"1h"', b'"12h"', b'"24h"')

_REFUSED = {
    "web_search_options": "the provider searches, and how often cannot be bounded",
    "search_parameters": "the provider searches, and how often cannot be bounded",
    "plugins": "they run at the provider",
    "mcp_servers": "their tools run at the provider",
    "fallbacks": "another model could answer",
    "models": "another model could answer",
    "route": "another model could answer",
    "preset": "another model could answer",
    "provider": "another rate could apply",
    "transforms": "the provider would choose what it reads",
    "prediction": "rejected tokens are billed and not bounded",
    "audio": "audio has rates of its own",
    "speech": "audio has rates of its own",
    "data_sources": "the provider would choose what it reads",
    "chat_template": "it could repeat the input",
    "prompt_embeds": "its tokens are not bounded by the request",
    "n_cmpl": "use n",
    "n_predict": "use max_tokens",
    "num_predict": "use max_tokens",
    "max_new_tokens": "use max_tokens",
    "max_output_tokens": "use max_tokens",
    "max_gen_len": "use max_tokens",
}
_NOT_READ = frozenset(
    "model messages max_tokens max_completion_tokens stream stream_options n best_of temperature top_p seed "
    "frequency_penalty presence_penalty logit_bias logprobs top_logprobs stop user metadata store "
    "service_tier prompt_cache_key safety_identifier parallel_tool_calls".split()
)
_TEXT_PARTS = frozenset({"text", "refusal", "input_text", "output_text", "thinking", "reasoning"})


def read(document: dict[str, Any], allow: Allowances) -> Asked:
    """Raises CallRefused. Fields are of openai-python, types/chat/completion_create_params.py."""
    refuse_given(document, _REFUSED, "not_metered")
    refuse_tier(document.get("service_tier"), TIERS, "service_tier")
    if any(kind != "text" for kind in listed(document, "modalities")):
        raise not_metered(
            "not_metered", "modalities other than text are not forwarded: they have other rates"
        )
    asked = _bound(document)
    stream = flag(document, "stream")
    options = nested(document, "stream_options")
    hides = stream and not flag(options, "include_usage")
    if hides:
        document = document | {"stream_options": options | {"include_usage": True}}
    tools = _tools(document)
    head = part_of(without(document, _NOT_READ))
    messages = [_message(member(one, "messages"), allow) for one in listed(document, "messages")]
    long_write = says((head, *messages), *LONG_WRITES)
    return Asked(
        document=document,
        model=model_of(document),
        stream=stream,
        head=head,
        messages=messages,
        output_asked=asked,
        answers=_answers(document),
        hides_usage=hides,
        # OpenAI writes its cache unasked, and newer models bill it.
        cache_write=CacheWrite.ONE_HOUR if long_write else CacheWrite.FIVE_MINUTES,
        slack=SLACK_TOOLS if tools else 0,
    )


def bound_output(document: dict[str, Any], tokens: int, unnamed: str) -> None:
    """Sets the bound under the name or names the client used, else under unnamed."""
    for name in [name for name in BOUNDS if document.get(name) is not None] or [unnamed]:
        document[name] = tokens
    for name in BOUNDS:
        if document.get(name, 0) is None:
            del document[name]


def _bound(document: dict[str, Any]) -> int | None:
    given = {bound for name in BOUNDS if (bound := whole_number(document, name, 1)) is not None}
    if len(given) > 1:
        raise bad_request("max_tokens and max_completion_tokens differ: which of them counts is not certain")
    return given.pop() if given else None


def _answers(document: dict[str, Any]) -> int:
    return max(whole_number(document, name, 1, MAX_ANSWERS) or 1 for name in ("n", "best_of"))


def _tools(document: dict[str, Any]) -> list[Any]:
    tools = listed(document, "tools")
    for item in tools:
        kind = kind_of(member(item, "tools"), "function")
        if kind not in ("function", "custom"):
            raise not_metered(
                "unbounded_tool", f"the tool {kind[:40]!r} is not forwarded: it runs at the provider"
            )
    return tools + listed(document, "functions")


def _message(message: dict[str, Any], allow: Allowances) -> Part:
    if message.get("audio") is not None:
        refuse_media("an audio that is stored at the provider")
    content = message.get("content")
    inputs = Inputs(allow)
    if isinstance(content, list):
        for item in content:
            _part(member(item, "content"), inputs)
    elif content is not None and not isinstance(content, str):
        raise bad_request("content must be a string or a list")
    return part_of(message, more=inputs.more, opaque=inputs.opaque)


def _part(part: dict[str, Any], inputs: Inputs) -> None:
    kind = kind_of(part)
    if kind == "image_url":
        image = part.get("image_url")
        inputs.image(data_url(image.get("url") if isinstance(image, dict) else image))
    elif kind == "file":
        inputs.document(nested(part, "file").get("file_data"))
    elif kind not in _TEXT_PARTS:
        refuse_media(f"a part of type {kind[:40]!r}")


def data_url(value: object) -> str | None:
    """The address, if the image is inside it. Raises for anything else that is inside an address."""
    if not isinstance(value, str) or not value[:5].lower().startswith("data:"):
        return None
    if not value.startswith("data:image/"):
        refuse_media("an address that holds what is no image")
    return value
