"""The sections `metrics` and `logging`: what is refused, with one line each."""

from pathlib import Path

import pytest

from roll.config.load import load
from roll.config.monitoring import is_loopback
from roll.errors import ConfigError
from roll.explain.run import explain

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {max_seq_len: 512}
"""


def fault(folder: Path, *overrides: str) -> str:
    (folder / "run.yaml").write_text(TEXT)
    with pytest.raises(ConfigError) as raised:
        load(folder / "run.yaml", list(overrides))
    return str(raised.value)


def test_a_host_that_others_reach_needs_an_explicit_setting(tmp_path: Path) -> None:
    line = fault(tmp_path, "metrics.port=9400", "metrics.host=0.0.0.0")
    assert line == (
        "command line: metrics: host: '0.0.0.0' lets other machines read the run's name, model, domains, rewards and "
        "memory without a password; add `expose: true`, or take 127.0.0.1"
    )
    load(tmp_path / "run.yaml", ["metrics.port=9400", "metrics.host=0.0.0.0", "metrics.expose=true"])
    load(tmp_path / "run.yaml", ["metrics.port=9400", "metrics.host=::1"])


def test_loopback_is_decided_without_a_name_server() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "my-host", "localhost.example.org")))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("logging.level=loud", "logging.level: must be 'debug', 'info', 'warning' or 'error' (got 'loud')"),
        ("logging.format=xml", "logging.format: must be 'text' or 'json' (got 'xml')"),
        ("metrics.port=70000", "metrics.port: must be less than or equal to 65535 (got 70000)"),
        ("metrics.stalled_after_s=0", "metrics.stalled_after_s: must be greater than 0 (got 0)"),
        ("tracking.log=json", "unknown key 'tracking.log'; it is now 'logging.format'"),
    ],
)
def test_a_bad_value_is_one_line(tmp_path: Path, override: str, line: str) -> None:
    assert fault(tmp_path, override) == f"command line: {line}"


def test_explain_says_who_can_read_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    assert "metrics " not in explain(load(tmp_path / "run.yaml").run)
    page = " ".join(explain(load(tmp_path / "run.yaml", ["metrics.port=9400"]).run).split())
    assert "served on 127.0.0.1, port 9400, to this machine alone" in page
