"""Chat templates of other makes than the demo's, each with a habit that histories must cope with."""

CHATML_ANY_ROLE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Contents are trimmed; tool results are JSON strings under a role of their own.
TRIMS_AND_QUOTES = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ '<|im_start|>ipython\n' + m.content | tojson + '<|im_end|>' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Reasoning is dropped from all turns but the last, and tool results are shown as user's.
DROPS_REASONING = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and not loop.last %}"
    "{{ '<|im_start|>assistant\n' + m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n[' + m.content + ']<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)

# No system prompt, and roles must alternate.
STRICT = (
    "{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('only user and assistant') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' <|endoftext|>' }}{% endif %}"
    "{% endfor %}"
)

# What a result is shown as depends on its text.
LOOKS_INTO_CONTENT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content.startswith('ERROR:') %}{{ '[failed] ' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The same, but only where it is wrapped from its start to its end.
ONLY_WRAPPED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content.startswith('<a>') and m.content.endswith('</a>') %}{{ '[wrapped] ' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
