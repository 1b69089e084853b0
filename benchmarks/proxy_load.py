"""Many clients of the proxy in one process: 200 conversations over kept connections, and how long each answer took.

The OpenAI client itself manages a few hundred requests a second on a core, so that it would be measured instead of the
proxy. This one writes the same requests to a socket and reads the answers from it, and does nothing else.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

TURNS = 8
"""Of a conversation, after which its client begins another."""
SYSTEM = "You are a careful assistant who answers in one short sentence, and says so when there is no answer. " * 4
QUESTION = "And what of the case in which there are {number} of them, and the last one is as long as the others?"


@dataclass(slots=True)
class Client:
    """One session's client: it sends the whole conversation with every request, as agents do."""

    host: str
    port: int
    key: str
    model: str
    number: int
    taken_s: list[float] = field(default_factory=list[float])
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    async def run(self, start_s: float, end_s: float, period_s: float) -> None:
        """Ask until `end_s`: as soon as an answer is there, or with a period, at fixed times, whatever came before."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        due_s = start_s + period_s * (self.number % 200) / 200
        while (began_s := due_s if period_s else time.perf_counter()) < end_s:
            if (early_s := began_s - time.perf_counter()) > 0:
                await asyncio.sleep(early_s)
            await self._ask(reader, writer)
            self.taken_s.append(time.perf_counter() - began_s)
            due_s += period_s
        writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn = len(self.messages) // 2
        if turn == 0 or turn > TURNS:
            self.messages = [{"role": "system", "content": f"{SYSTEM}{self.number}.{len(self.taken_s)}"}]
        self.messages.append({"role": "user", "content": QUESTION.format(number=len(self.messages))})
        body = msgspec.json.encode({"model": self.model, "messages": self.messages})
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found = await reader.readexactly(size)
        assert answer.startswith(b"http/1.1 200"), found
        reply: Any = msgspec.json.decode(found)["choices"][0]["message"]
        self.messages.append({"role": "assistant", "content": reply["content"]})


async def load(given: dict[str, Any]) -> dict[str, Any]:
    """What every client saw: requests a second, and the seconds each answer took."""
    clients = [
        Client(given["host"], given["port"], key, given["model"], number) for number, key in enumerate(given["keys"])
    ]
    start_s = time.perf_counter() + 0.2
    end_s = start_s + given["seconds"]
    period_s = len(clients) / given["rate"] if given["rate"] else 0.0
    await asyncio.gather(*(client.run(start_s, end_s, period_s) for client in clients))
    taken_s = sorted(taken for client in clients for taken in client.taken_s)
    spent_s = max(given["seconds"], time.perf_counter() - start_s)
    return {
        "rate": len(taken_s) / spent_s,
        "median_ms": 1000 * taken_s[len(taken_s) // 2],
        "p99_ms": 1000 * taken_s[int(0.99 * len(taken_s))],
        "requests": len(taken_s),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(load(json.load(sys.stdin)))))
