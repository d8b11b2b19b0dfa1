"""The hub's rendering conventions, and what is found out about a template."""

from __future__ import annotations

import pytest
from agent_models import MOMENT, template
from agent_templates import CHATML_ANY_ROLE, DROPS_REASONING, LOOKS_INTO_CONTENT, ONLY_WRAPPED, STRICT, TRIMS_AND_QUOTES

from concur_batch.agent.increment import Increments, rewriting
from concur_batch.agent.template import ChatTemplate, TemplateError

USER = [{"role": "user", "content": "hi"}]


def shown(source: str, tools: list[dict[str, object]] | None = None, **variables: str) -> str:
    return template(source, **variables).render(USER, tools, generation_prompt=True)


def test_blocks_leave_no_lines_behind():
    assert shown("a\n  {% for m in messages %}\nb {{ m.content }}\n  {% endfor %}\nc") == "a\nb hi\nc"


def test_loop_controls_and_generation_blocks():
    source = "{% for n in [1, 2, 3] %}{% if n == 2 %}{% continue %}{% endif %}{{ n }}{% endfor %}"
    assert shown(source) == "13"
    assert shown("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"


def test_tojson_is_plain_json():
    assert shown("{{ tools | tojson }}", [{"a": "<é&'>"}]) == '[{"a": "<é&\'>"}]'
    assert shown("{{ tools | tojson(indent=1) }}", [{"a": 1}]) == '[\n {\n  "a": 1\n }\n]'


def test_variables_and_the_fixed_moment():
    assert shown("{{ bos_token }}{{ strftime_now('%d %b %Y') }}", bos_token="<s>") == "<s>26 Jul 2024"


def test_missing_variables_are_falsy_as_on_the_hub():
    assert shown("{% if bos_token %}a{% else %}b{% endif %}{% if tools is none %}c{% endif %}") == "bc"


def test_the_template_of_tool_use():
    two = ChatTemplate({"default": "plain", "tool_use": "tools"}, {}, MOMENT)
    assert two.render(USER, None, generation_prompt=True) == "plain"
    assert two.render(USER, [{"a": 1}], generation_prompt=True) == "tools"


def test_refusals_are_template_errors():
    with pytest.raises(TemplateError, match="only user and assistant"):
        template(STRICT).render([{"role": "tool", "content": "x"}], None, generation_prompt=True)
    with pytest.raises(TemplateError, match="TypeError"):
        shown("{{ messages + 1 }}")
    with pytest.raises(TemplateError, match="line 2"):
        template("\n{% if %}")
    with pytest.raises(TemplateError, match="default"):
        ChatTemplate({"rag": ""}, {}, MOMENT)


def test_templates_cannot_reach_python():
    with pytest.raises(TemplateError, match="SecurityError"):
        shown("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TemplateError, match="SecurityError"):
        shown("{{ messages.append(1) }}")


def test_what_is_found_out(demo):
    facts = {
        name: (found.takes_system, found.takes_tools, found.takes_tool_role, found.opens_thinking)
        for name, found in {
            "demo": demo.template,
            "any role": template(CHATML_ANY_ROLE),
            "trims": template(TRIMS_AND_QUOTES),
            "drops": template(DROPS_REASONING),
            "strict": template(STRICT),
        }.items()
    }
    assert facts == {
        "demo": (True, True, True, False),
        "any role": (True, False, False, False),
        "trims": (True, False, True, False),
        "drops": (True, False, True, True),
        "strict": (False, False, False, False),
    }


def test_rewriting_is_told(demo):
    assert rewriting(demo.template, None, "tool") is None
    assert rewriting(template(CHATML_ANY_ROLE), None, "user") is None
    trimmed = "blank space around a turn of the assistant is rewritten once a {} follows"
    assert rewriting(template(TRIMS_AND_QUOTES), None, "user") == trimmed.format("user's message")
    assert rewriting(template(TRIMS_AND_QUOTES), None, "tool") == trimmed.format("tool's result")
    opening = "a turn of the assistant is not opened by the generation prompt any more once a tool's result follows"
    assert rewriting(template(DROPS_REASONING), None, "tool") == opening
    without_opening = DROPS_REASONING.replace("assistant\n<think>\n' }}", "assistant\n' }}")
    dropped = "earlier reasoning of the assistant is rewritten once a tool's result follows"
    assert rewriting(template(without_opening), None, "tool") == dropped
    only_next = without_opening.replace("not loop.last", "loop.revindex > 2")
    later = "earlier reasoning of the assistant is rewritten once a turn after a tool's result follows"
    assert rewriting(template(only_next), None, "tool") == later


@pytest.mark.parametrize(
    "source", [TRIMS_AND_QUOTES, ONLY_WRAPPED, LOOKS_INTO_CONTENT, CHATML_ANY_ROLE, DROPS_REASONING]
)
@pytest.mark.parametrize(
    "content", ["plain", "  x \n", 'say "a"', "ERROR: no", "ERROR", "", "concurmark", "<a>x</a>", "\n\né"]
)
@pytest.mark.parametrize("roles", [("user",), ("tool",), ("tool", "tool")])
def test_an_increment_is_what_rendering_the_whole_appends(source, content, roles):
    """Whether found once or rendered each time, and whatever the template does to a content."""
    messages = [{"role": role, "name": "t", "content": content} for role in roles]
    whole = [*USER, {"role": "assistant", "content": "said"}, *messages]
    made = template(source)
    text = made.render(whole, None, generation_prompt=True)
    increments = Increments(made, None)
    assert increments.text(messages) == text.partition("said")[2]
    assert increments.text(messages) == text.partition("said")[2]
