"""Owns which reader an answer gets.
May touch nothing.
Never guesses the wire format: it is that of the request.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.gateway.calls import Api, ModelCall, UsageReader
from supervisor.gateway.usage.anthropic import AnthropicUsage
from supervisor.gateway.usage.gemini import GeminiUsage
from supervisor.gateway.usage.openai_chat import OpenAIChatUsage
from supervisor.gateway.usage.openai_responses import OpenAIResponsesUsage

_READERS: dict[Api, Callable[[ModelCall], UsageReader]] = {
    Api.ANTHROPIC_MESSAGES: AnthropicUsage,
    Api.OPENAI_CHAT: OpenAIChatUsage,
    Api.OPENAI_RESPONSES: OpenAIResponsesUsage,
    Api.GEMINI: GeminiUsage,
}


def reader_for(call: ModelCall) -> UsageReader:
    """A reader for the one answer to that call."""
    return _READERS[call.api](call)
