"""Owns how a request for a model becomes a call that can be bounded, and the bytes that are sent for it.
May touch nothing but the memory it is given.
Never forwards what it did not understand as far as the price depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from supervisor.gateway.asked import anthropic, gemini, openai_chat, openai_responses
from supervisor.gateway.asked.common import Allowances, Asked
from supervisor.gateway.bounds import SLACK_CALL, BoundMemory, encoded, prefixes_of
from supervisor.gateway.calls import Api, ModelCall
from supervisor.gateway.strict import bad_request, read_object, refuse_other_spellings

__all__ = ["Allowances", "BoundMemory", "ChatBound", "read_call", "rewrite"]

ChatBound = Literal["max_completion_tokens", "max_tokens"]
"""What a Chat server calls its output bound: OpenAI's newer models know only the first, vLLM, llama.cpp
and Ollama only the second."""

_BODY_READERS: dict[Api, Callable[[dict[str, Any], Allowances], Asked]] = {
    Api.ANTHROPIC_MESSAGES: anthropic.read,
    Api.OPENAI_CHAT: openai_chat.read,
    Api.OPENAI_RESPONSES: openai_responses.read,
}


def read_call(
    api: Api,
    body: bytes,
    *,
    model: str | None = None,
    stream: bool | None = None,
    memory: BoundMemory,
    allow: Allowances,
) -> ModelCall:
    """Reads a request strictly. model and stream: of the path, for Gemini, whose body has neither.

    Where tools run at the provider, input_bound is of all their rounds, and answers counts the output
    once for every round. Raises CallRefused (400) with the code invalid_request, unbounded_input,
    unbounded_tool, dearer_rate or not_metered.
    """
    document = read_object(body)
    if api is Api.GEMINI:
        if model is None or stream is None:
            raise bad_request("the path names no model")
        asked = gemini.read(document, allow, model, stream)
    else:
        refuse_other_spellings(document)
        asked = _BODY_READERS[api](document, allow)
    prefixes = prefixes_of(f"{api}/{asked.model}", asked.head, asked.messages) if asked.refine else ()
    bound = memory.bound(prefixes, asked.head, asked.messages, SLACK_CALL + asked.slack)
    rounds = asked.rounds
    return ModelCall(
        api=api,
        model=asked.model,
        stream=asked.stream,
        input_bound=bound * rounds + asked.per_round * (rounds * (rounds - 1) // 2),
        output_asked=asked.output_asked,
        output_least=asked.output_least,
        answers=asked.answers * rounds,
        hides_usage=asked.hides_usage,
        cache_write=asked.cache_write,
        tools=asked.uses,
        document=asked.document,
        prefixes=prefixes,
    )


def rewrite(
    call: ModelCall, output_tokens: int, model: str | None = None, *, chat_bound: ChatBound = "max_tokens"
) -> bytes:
    """The body to send: the request with its output bound set to that many tokens per answer.

    model: the upstream's own name for it, where that differs. chat_bound: the name of the bound for a
    Chat request that named none. All else is as the client sent it, but for stream_options of a Chat
    stream, store of a Response, and the uses of provider tools, which were bounded when it was read.
    """
    document = dict(call.document)
    if model is not None and call.api is not Api.GEMINI:
        document["model"] = model
    match call.api:
        case Api.ANTHROPIC_MESSAGES:
            anthropic.bound_output(call, document, output_tokens)
        case Api.OPENAI_CHAT:
            openai_chat.bound_output(document, output_tokens, chat_bound)
        case Api.OPENAI_RESPONSES:
            openai_responses.bound_output(document, output_tokens)
        case Api.GEMINI:
            gemini.bound_output(document, output_tokens)
    return encoded(document)
