"""The names of transformers that roll uses, for the type checker, which needs a third of its time for all of them."""

from typing import Any

class PretrainedConfig:
    def __init__(self, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...
    def to_json_string(self, use_diff: bool = ...) -> str: ...
    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None: ...

AttentionInterface: Any
AttentionMaskInterface: Any
AutoConfig: Any
AutoModelForCausalLM: Any
AutoModelForSequenceClassification: Any
AutoTokenizer: Any
PreTrainedTokenizerFast: Any
