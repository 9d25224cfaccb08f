"""Calls of the package `litellm`."""

from __future__ import annotations

import litellm
from asked import arguments, report
from structured import Answer

base_url, model, prompt, max_tokens = arguments()
server = {"api_base": base_url, "api_key": "none"}
common = {**server, "temperature": 0, "max_tokens": max_tokens}
messages = [{"role": "user", "content": prompt}]

completion = litellm.text_completion(
    model=f"text-completion-openai/{model}", prompt=prompt, **common
)
chunks = litellm.text_completion(
    model=f"text-completion-openai/{model}", prompt=prompt, stream=True, **common
)
texts = {
    "completion": completion.choices[0].text,
    "completion stream": "".join(chunk.choices[0].text or "" for chunk in chunks),
}
for provider in ("openai", "hosted_vllm"):
    reply = litellm.completion(model=f"{provider}/{model}", messages=messages, **common)
    texts[f"chat of {provider}"] = reply.choices[0].message.content
chunks = litellm.completion(model=f"openai/{model}", messages=messages, stream=True, **common)
texts["chat stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
for provider in ("openai", "hosted_vllm"):
    reply = litellm.completion(
        model=f"{provider}/{model}",
        messages=messages,
        response_format=Answer,
        **common | {"max_tokens": 200},
    )
    found = Answer.model_validate_json(reply.choices[0].message.content)
    texts[f"structured of {provider}"] = found.model_dump_json()
report(texts)
