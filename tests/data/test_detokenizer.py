"""Text from ids must be what the tokenizer itself would say, whatever the ids."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from roll.data.codec import detokenizer, last_tokens
from roll.data.templates import character_tokenizer

pytestmark = pytest.mark.slow


def byte_level() -> Any:
    """A small tokenizer whose tokens are bytes, as those of most models are, with words and a special token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<end>"])
    tokenizer.train_from_iterator(["the cat sat on the mat, naïve café 東京 тест 🙂 "] * 20, trainer)
    found = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", clean_up_tokenization_spaces=False)
    found.add_tokens(["<tool>", "größe"])
    return found


def metaspace() -> Any:
    """One whose decoder does more than put pieces end to end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.WordLevel({"<unk>": 0, "▁a": 1, "▁b": 2, "c": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", clean_up_tokenization_spaces=False)


def words() -> Any:
    """One whose tokens are put end to end, and are not all of one character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "bc": 2, "é": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", clean_up_tokenization_spaces=False)


TOKENIZERS = {
    "byte level": byte_level(),
    "characters": character_tokenizer("abc +=é東\n"),
    "characters and none": character_tokenizer("ab\0"),
    "metaspace": metaspace(),
    "words": words(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, derandomize=True, deadline=None)
@given(data=some.data())
def test_the_text_equals_that_of_the_tokenizer(name: str, data: some.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(some.lists(some.integers(0, len(tokenizer) - 1), max_size=30))
    theirs = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert detokenizer(tokenizer)(ids) == theirs


def test_real_text_is_restored() -> None:
    tokenizer = TOKENIZERS["byte level"]
    text = "a naïve 🙂 <tool> in 東京\n\t!"
    assert detokenizer(tokenizer)(tokenizer.encode(text)) == text


def test_a_character_split_over_tokens_ends_with_its_last_token() -> None:
    tokenizer = TOKENIZERS["byte level"]
    letters = [
        "a",
        "ð",
        "Ł",
        "Ļ",
        "Ĥ",
        "<end>",
        "b",
        "ï",
        "¿",
        "½",
        "ï",
        "c",
    ]  # a, four bytes of 🙂, b, three of U+FFFD, one byte
    ids = np.array([tokenizer.convert_tokens_to_ids(letter) for letter in letters], np.int32)
    decode = detokenizer(tokenizer)
    assert decode(ids) == "a🙂b\ufffd\ufffdc"
    assert last_tokens(decode, ids, [1, 2, 3, 4, 5, 6]) == [0, 4, 6, 9, 10, 11]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=50, derandomize=True, deadline=None)
@given(data=some.data())
def test_the_tokens_up_to_the_last_one_of_a_span_decode_to_its_text(name: str, data: some.DataObject) -> None:
    decode = detokenizer(TOKENIZERS[name])
    ids = np.array(data.draw(some.lists(some.integers(0, len(TOKENIZERS[name]) - 1), max_size=30)), np.int32)
    text = decode(ids)
    ends = list(range(1, len(text) + 1))
    tokens = last_tokens(decode, ids, ends)
    assert tokens == sorted(tokens)
    for end, token in zip(ends, tokens, strict=True):
        assert decode(ids[: token + 1]).startswith(text[:end])
        assert text[end - 1] == "\ufffd" or not decode(ids[:token]).startswith(text[:end])
