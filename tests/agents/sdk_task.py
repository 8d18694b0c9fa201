"""Owns a small agent on the vendors' SDKs: it asks, uses the one tool it has, and tells how that went.
May touch the folder it is started in, and the model that the SDK's own variables name.
Never sets an address, a key or a number of retries: what is shown is that nothing has to be set.

usage: sdk_task.py anthropic|openai-chat|openai-responses|google-genai whole|stream MODEL [hold]
"""

# The SDKs are in an environment of their own, where this is run; the types of its calls are theirs.
# mypy: ignore-errors

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

TASK = "Correct the spelling in greet.py."
NAME, ABOUT = "write_file", "Write a text to a file."
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
    "required": ["path", "text"],
}
tokens: Counter[str] = Counter()
requests = 0
kept = []
"""Everything that came back, so that it can be found in memory."""


def counting(send):
    """The SDK's own retries do not show elsewhere."""

    def counted(self, data, *rest):
        global requests
        requests += bytes(data[:5]) == b"POST "
        return send(self, data, *rest)

    return counted


socket.socket.send = counting(socket.socket.send)
socket.socket.sendall = counting(socket.socket.sendall)


def use(arguments):
    Path(arguments["path"]).write_text(arguments["text"])
    return "written"


def ask_anthropic(stream, model):
    import anthropic

    client = anthropic.Anthropic()
    messages = [{"role": "user", "content": TASK}]
    tools = [{"name": NAME, "description": ABOUT, "input_schema": PARAMETERS}]
    while True:
        asked = {"model": model, "max_tokens": 1024, "messages": messages, "tools": tools}
        if stream:
            with client.messages.stream(**asked) as events:
                texts = list(events.text_stream)
                answer = events.get_final_message()
            kept.append(dict(events.response.headers))
            assert len(texts) > 1, "it came in one piece"
        else:
            raw = client.messages.with_raw_response.create(**asked)
            kept.append(dict(raw.headers))
            answer = raw.parse()
        kept.append(answer)
        tokens["input"] += answer.usage.input_tokens
        tokens["output"] += answer.usage.output_tokens
        messages.append({"role": "assistant", "content": answer.content})
        used = [block for block in answer.content if block.type == "tool_use"]
        if not used:
            return answer.content[0].text
        results = [{"type": "tool_result", "tool_use_id": one.id, "content": use(one.input)} for one in used]
        messages.append({"role": "user", "content": results})


def ask_openai_chat(stream, model):
    import openai

    client = openai.OpenAI()
    messages = [{"role": "user", "content": TASK}]
    function = {"name": NAME, "description": ABOUT, "parameters": PARAMETERS}
    while True:
        asked = {
            "model": model,
            "messages": messages,
            "tools": [{"type": "function", "function": function}],
        }
        if stream:
            said, arguments, call, chunks = (
                "",
                "",
                None,
                list(client.chat.completions.create(**asked, stream=True)),
            )
            kept.append(chunks)
            for chunk in chunks:
                # Nobody asked for the usage here, so there is no chunk without a choice.
                delta = chunk.choices[0].delta
                said += delta.content or ""
                for part in delta.tool_calls or []:
                    call = call or part.id
                    arguments += part.function.arguments
            assert all(chunk.usage is None for chunk in chunks) and len(chunks) > 3
        else:
            raw = client.chat.completions.with_raw_response.create(**asked)
            kept.append(dict(raw.headers))
            answer = raw.parse()
            kept.append(answer)
            tokens["input"] += answer.usage.prompt_tokens
            tokens["output"] += answer.usage.completion_tokens
            message = answer.choices[0].message
            said, call, arguments = message.content, None, ""
            for part in message.tool_calls or []:
                call, arguments = part.id, part.function.arguments
        if call is None:
            return said
        made = {"id": call, "type": "function", "function": {"name": NAME, "arguments": arguments}}
        messages.append({"role": "assistant", "content": said, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": call, "content": use(json.loads(arguments))})


def ask_openai_responses(stream, model):
    import openai

    client = openai.OpenAI()
    items = [{"role": "user", "content": TASK}]
    tool = {"type": "function", "name": NAME, "description": ABOUT, "parameters": PARAMETERS, "strict": False}
    while True:
        asked = {"model": model, "input": items, "tools": [tool]}
        if stream:
            with client.responses.stream(**asked) as events:
                deltas = [event for event in events if event.type == "response.output_text.delta"]
                answer = events.get_final_response()
            assert len(deltas) > 1, "it came in one piece"
        else:
            answer = client.responses.create(**asked)
        kept.append(answer)
        tokens["input"] += answer.usage.input_tokens
        tokens["output"] += answer.usage.output_tokens
        used = [item for item in answer.output if item.type == "function_call"]
        if not used:
            return answer.output_text
        for one in used:
            call = {"type": "function_call", "call_id": one.call_id, "name": one.name}
            items.append(call | {"arguments": one.arguments})
            output = use(json.loads(one.arguments))
            items.append({"type": "function_call_output", "call_id": one.call_id, "output": output})


def ask_google_genai(stream, model):
    from google import genai
    from google.genai import types

    client = genai.Client()
    contents = [types.Content(role="user", parts=[types.Part(text=TASK)])]
    declared = types.FunctionDeclaration(name=NAME, description=ABOUT, parameters_json_schema=PARAMETERS)
    config = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[declared])])
    while True:
        asked = {"model": model, "contents": contents, "config": config}
        if stream:
            answers = list(client.models.generate_content_stream(**asked))
            assert len(answers) > 1, "it came in one piece"
        else:
            answers = [client.models.generate_content(**asked)]
        kept.append(answers)
        tokens["input"] += answers[-1].usage_metadata.prompt_token_count
        tokens["output"] += answers[-1].usage_metadata.candidates_token_count
        parts = [part for answer in answers for part in answer.candidates[0].content.parts]
        contents.append(types.Content(role="model", parts=parts))
        used = [part.function_call for part in parts if part.function_call]
        if not used:
            return "".join(part.text for part in parts)
        results = [
            types.Part.from_function_response(name=one.name, response={"said": use(one.args)}) for one in used
        ]
        contents.append(types.Content(role="user", parts=results))


def main():
    sdk, how, model, *hold = sys.argv[1:]
    # A refusal ends the run; what it says is to be printed before that.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ask = globals()[f"ask_{sdk.replace('-', '_')}"]
    try:
        print("said", ask(how == "stream", model))
    except Exception as error:
        kept.append(error)
        print("refused", type(error).__name__, getattr(error, "status_code", None) or error.code, error)
    print("tokens", tokens["input"], tokens["output"])
    print("requests", requests)
    if hold:
        print("UP")
        time.sleep(600)


if __name__ == "__main__":
    main()
