"""Alternates numbers with the model at OPENAI_BASE_URL. It uses the OpenAI client and nothing else."""

import json
import os
import sys

from openai import OpenAI

client = OpenAI()
messages, right = [], 0
for number in (1, 3, 5):
    messages.append({"role": "user", "content": str(number)})
    completion = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
    response = completion.choices[0].message.content
    messages.append({"role": "assistant", "content": response})
    right += response == str(number + 1)
sys.stdout.write(json.dumps({"reward": right / 3}))
