"""Ids of a text must be what the tokenizer itself would say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from roll.data.codec import encoder
from tests.data.test_detokenizer import TOKENIZERS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("markup", [True, False])
@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    parts=some.lists(
        some.sampled_from(["a", "bc ", "é", "東京", "<end>", "<eos>", "<tool>", "x\n", "<unk>"]), max_size=8
    )
)
def test_the_ids_equal_those_of_the_tokenizer(name: str, markup: bool, parts: list[str]) -> None:
    tokenizer, text = TOKENIZERS[name], "".join(parts)
    ours = list(encoder(tokenizer)(text, markup))
    assert ours == tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not markup)


def test_other_uses_of_the_tokenizer_have_no_effect() -> None:
    tokenizer = TOKENIZERS["characters"]
    encode = encoder(tokenizer)
    wanted = list(encode("abcabc", False))
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    assert list(encode("abcabc", False)) == wanted and len(wanted) == 6
