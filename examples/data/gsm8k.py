"""Writes data/gsm8k_train.jsonl and data/gsm8k_test.jsonl for examples/gsm8k.yaml; downloads openai/gsm8k."""

from datasets import load_dataset

for split, rows in load_dataset("openai/gsm8k", "main").items():
    rows = rows.map(lambda row: {"prompt": row["question"], "answer": row["answer"].rpartition("#### ")[2]})
    rows.select_columns(["prompt", "answer"]).to_json(f"data/gsm8k_{split}.jsonl")
