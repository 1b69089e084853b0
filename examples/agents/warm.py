"""Imported once, before agents are forked: makes the client import what it otherwise would in every one of them."""

from openai import OpenAI

OpenAI(base_url="http://127.0.0.1/v1", api_key="none").chat.completions  # noqa: B018 - to look at it is the point
