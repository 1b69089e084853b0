"""Many clients of the proxy in one process: 200 conversations over persistent connections, with their latencies.

The OpenAI client reaches only a few hundred requests per second per core, so it would be the bottleneck. This client
writes the same requests to a socket, reads the responses, and does nothing else.
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
"""Turns per conversation; then the client starts another."""
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
    latencies_s: list[float] = field(default_factory=list[float])
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    async def run(self, start_s: float, end_s: float, period_s: float) -> None:
        """Send requests until `end_s`: each after the previous response, or, with a period, at fixed times."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        due_s = start_s + period_s * (self.number % 200) / 200
        while (began_s := due_s if period_s else time.perf_counter()) < end_s:
            if (early_s := began_s - time.perf_counter()) > 0:
                await asyncio.sleep(early_s)
            await self._send(reader, writer)
            self.latencies_s.append(time.perf_counter() - began_s)
            due_s += period_s
        writer.close()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn = len(self.messages) // 2
        if turn == 0 or turn > TURNS:
            self.messages = [{"role": "system", "content": f"{SYSTEM}{self.number}.{len(self.latencies_s)}"}]
        self.messages.append({"role": "user", "content": QUESTION.format(number=len(self.messages))})
        body = msgspec.json.encode({"model": self.model, "messages": self.messages})
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        header = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(header.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        content = await reader.readexactly(size)
        assert header.startswith(b"http/1.1 200"), content
        response: Any = msgspec.json.decode(content)["choices"][0]["message"]
        self.messages.append({"role": "assistant", "content": response["content"]})


async def run_load(load: dict[str, Any]) -> dict[str, Any]:
    """Requests per second, and percentiles of the latency, over all clients."""
    clients = [
        Client(load["host"], load["port"], key, load["model"], number) for number, key in enumerate(load["keys"])
    ]
    start_s = time.perf_counter() + 0.2
    end_s = start_s + load["seconds"]
    period_s = len(clients) / load["rate"] if load["rate"] else 0.0
    await asyncio.gather(*(client.run(start_s, end_s, period_s) for client in clients))
    latencies_s = sorted(seconds for client in clients for seconds in client.latencies_s)
    spent_s = max(load["seconds"], time.perf_counter() - start_s)
    return {
        "rate": len(latencies_s) / spent_s,
        "median_ms": 1000 * latencies_s[len(latencies_s) // 2],
        "p99_ms": 1000 * latencies_s[int(0.99 * len(latencies_s))],
        "requests": len(latencies_s),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run_load(json.load(sys.stdin)))))
