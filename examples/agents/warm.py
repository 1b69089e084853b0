"""Imported once, before agents are forked: makes the client do its late imports."""

from openai import OpenAI

OpenAI(base_url="http://127.0.0.1/v1", api_key="none").chat.completions  # noqa: B018 - the access triggers the imports
