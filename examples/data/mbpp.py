"""Writes data/mbpp_train.jsonl and data/mbpp_test.jsonl for examples/mbpp.yaml, from google-research-datasets/mbpp."""

from datasets import load_dataset

for split in ("train", "test"):
    rows = load_dataset("google-research-datasets/mbpp", "full", split=split)
    rows = rows.rename_columns({"text": "prompt", "code": "reference", "test_list": "tests"})
    rows.select_columns(["prompt", "reference", "tests", "test_setup_code"]).to_json(f"data/mbpp_{split}.jsonl")
