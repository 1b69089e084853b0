"""Chat templates of our own writing in the shape of seven families, and a tokenizer that can spell a word twice."""

from typing import Any

from roll.data.templates import Template

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n.,:;?!+-*/=(){}[]<>|_\"'"
MERGES = [("a", "b"), ("ab", "c"), ("1", "2"), ("e", "r"), ("t", "h"), ("th", "e"), ("\n", "\n"), ("u", "s")]
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Words of the vocabulary that are text all the same."""

CHATML = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{{ 'Tools:\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
    '{{ \'Call as <tool_call>{"name": NAME, "arguments": {}}</tool_call><|im_end|>\n\' }}'
    "{% elif messages[0].role == 'system' %}"
    "{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{% elif m.role == 'assistant' and m.tool_calls %}{{ '<|im_start|>assistant\n' + m.content }}"
    '{% for call in m.tool_calls %}{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif not (m.role == 'system' and loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ '<|begin_of_text|>' }}{% if tools %}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    '{{ \'Answer with {"name": NAME, "parameters": {}} to call one of:\n\' }}'
    "{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}"
    "{% for m in messages %}"
    "{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' }}"
    "{% if m.tool_calls %}{% set call = m.tool_calls[0].function %}"
    "{{ '{\"name\": \"' + call.name + '\", \"parameters\": ' }}{{ call.arguments | tojson + '}' }}"
    "{% else %}{{ m.content | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
THINKING = (  # thoughts are shown from the last question on, and dropped before it; what a tool says is no question
    "{% set seen = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set seen.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}{{ '<|im_start|>system\nTools:\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% set content = m.content %}"
    "{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{% set thoughts = '' %}"
    "{% if '</think>' in content %}"
    "{% set thoughts = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > seen.last and thoughts %}{{ '<think>\n' + thoughts + '\n</think>\n\n' }}{% endif %}"
    "{{ content }}"
    "{% for call in m.tool_calls or [] %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{ m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (  # a space before a response, which the prompt does not end with
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('After the optional system message, conversation roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
GLM = (  # no token of its own ends a response: the role of the next message does
    "{{ '[gMASK]<sop>' }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
FAMILIES = {"chatml": CHATML, "llama": LLAMA, "thinking": THINKING}
"""Templates with system messages and tools."""
STRICT = {"gemma": GEMMA, "mistral": MISTRAL, "glm": GLM, "phi": PHI}
"""Templates without tools, some of which refuse other roles than user and assistant."""
_MARKS = {
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "mistral": ("[INST]", "[/INST]"),
    "glm": ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    "phi": ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    "llama": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "thinking": ("<|im_start|>", "<|im_end|>"),
}


def tokenizer(family: str) -> Any:
    """Byte pairs over a few letters, with the special tokens of a family."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *ALPHABET, *(left + right for left, right in MERGES)]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend: Any = Tokenizer(models.BPE(vocabulary, MERGES, unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    found: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    found.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    if family == "phi":  # special, and not listed in tokenizer_config.json
        found.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in _MARKS[family]])
    else:
        found.add_special_tokens({"additional_special_tokens": list(_MARKS[family])})
    if family in ("gemma", "mistral"):
        found.add_special_tokens({"bos_token": "<bos>"})
    found.chat_template = {**FAMILIES, **STRICT}[family]
    return found


def family(name: str) -> Template:
    """The template of a family."""
    return Template(tokenizer(name))
