"""The chat client with a real server: vLLM's, over an untrained model."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.chat.openai import ChatSettings, OpenAIChat
from roll.data.templates import character_tokenizer
from roll.types import Message
from roll.weights.huggingface import write_model
from tests.engines_optional.conftest import NEEDS_VLLM, model

pytestmark = NEEDS_VLLM
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}="
QUESTION = [Message("system", "12"), Message("user", "3+4")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("served")
    tokenizer = character_tokenizer("0123456789+=")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    decoder = model(vocab_size=len(tokenizer))
    write_model(path, decoder.config, dict(decoder.named_tensors()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    arguments = ["--served-model-name", "nobody", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    sizes = [
        "--max-model-len",
        "128",
        "--max-num-seqs",
        "8",
        "--dtype",
        "float32",
        "--kv-cache-memory-bytes",
        "100000000",
    ]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(path), *arguments, *sizes]
    quiet = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    with (path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **quiet}, start_new_session=True)
    try:
        wait_for(f"{address}/health", server, path / "server.log")
        yield f"{address}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_for(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up; {log.read_text(errors='replace')[-3000:]}")


def test_a_chat_gets_the_same_reply_for_the_same_question(url: str) -> None:
    chat = OpenAIChat(ChatSettings(url=url, model="nobody", max_tokens=12))

    async def ask() -> list[str]:
        return list(await asyncio.gather(*(chat.complete(QUESTION) for _ in range(4))))

    replies = asyncio.run(ask())
    assert len(set(replies)) == 1 and 0 < len(replies[0]) <= 12 and set(replies[0]) <= set("0123456789+=")


def test_options_reach_the_server(url: str) -> None:
    chat = OpenAIChat(ChatSettings(url=url, model="nobody", temperature=1.0))

    async def ask() -> tuple[str, str, set[str]]:
        one, again = [await chat.complete(QUESTION, seed=5, max_tokens=20) for _ in range(2)]
        others = {await chat.complete(QUESTION, seed=seed, max_tokens=20) for seed in range(8)}
        return one, again, others

    one, again, others = asyncio.run(ask())
    assert one == again and len(others) > 1
