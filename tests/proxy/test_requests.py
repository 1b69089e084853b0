"""Parameters of requests: taken, ignored or refused, with all faults of a request in one error."""

from typing import Any

import pytest
from pydantic import ValidationError

from roll.config.envs import ProxyConfig
from roll.proxy.messages import ApiError
from roll.proxy.requests import ChatRequest, RequestRules, read_request
from roll.types import Sampling

HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
RULES = RequestRules(models=("tiny",), ignored=frozenset({"logit_bias", "top_k"}), sampling=Sampling())


def read(**changes: Any) -> ChatRequest:
    return read_request({**HELLO, **changes}, RULES)


def refusal(**changes: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        read(**changes)
    return refused.value


def test_all_faults_of_a_request_are_in_one_error() -> None:
    king = {"role": "king", "content": ""}
    error = refusal(
        model="gpt", beams=2, best_of=3, temperature=0.5, seed="x", messages=[king, *HELLO["messages"], king]
    )
    assert error.status == 400 and error.param == "beams"
    assert error.message.startswith("6 faults: (1) unsupported parameters: 'beams', 'best_of'; leave them out")
    for fault in ("temperature: this run", "no model 'gpt'", "messages.0: no known role", "messages.2", "seed: not a"):
        assert fault in error.message


def test_a_single_fault_keeps_its_status_and_code() -> None:
    error = refusal(model="gpt")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert error.message.startswith("no model 'gpt'")


def test_listed_parameters_are_dropped_whatever_their_value() -> None:
    assert read(logit_bias={"5": 100}, top_k="many").ignored == ("logit_bias", "top_k")
    assert read(user="me").ignored == ()
    error = refusal(logit_bias={"5": 100}, beams=2)
    assert error.message == "unsupported parameters: 'beams'; leave them out, or list them in proxy.ignore of the run"


def test_what_a_request_cannot_be_without_is_never_ignored() -> None:
    assert ProxyConfig(ignore=("logit_bias", "store")).ignore == ("logit_bias", "store")
    with pytest.raises(ValidationError, match="a request without 'messages' has no meaning"):
        ProxyConfig(ignore=("messages",))
