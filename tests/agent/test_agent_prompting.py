"""What agents are told: that it is there, where the template takes it, and that what it shows can be parsed."""

from __future__ import annotations

import json

import pytest
from agent_models import template
from agent_templates import CHATML_ANY_ROLE, DROPS_REASONING, STRICT

from concur_batch.agent.actions import Call, Calls, parse
from concur_batch.agent.prompting import initial_messages, observation_messages, retry_messages
from tools_env.catalogue import CATALOGUE
from tools_env.spec import ToolResult

SPECS = list(CATALOGUE.values())
LS = Call("bash", {"command": "ls"})
PLAIN = template(CHATML_ANY_ROLE)


def test_hermes_where_the_template_shows_tools(demo):
    messages, tools = initial_messages("Be good.", "Go.", SPECS, "hermes", demo.template)
    assert messages == [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Go."}]
    assert tools is not None
    text = demo.template.render(messages, tools, generation_prompt=True)
    for spec in SPECS:
        schema = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        assert json.dumps({"type": "function", "function": schema}, ensure_ascii=False) in text


def test_hermes_where_it_does_not():
    messages, tools = initial_messages("Be good.", "Go.", SPECS, "hermes", PLAIN)
    assert tools is None
    system = messages[0]["content"]
    assert system.startswith("Be good.\n\n# Tools\n")
    shown = system.split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert [json.loads(line)["function"]["name"] for line in shown] == list(CATALOGUE)
    assert '{"name": <function-name>, "arguments": <args-json-object>}' in system


def test_react_lists_tools_by_their_arguments():
    messages, tools = initial_messages("", "Go.", SPECS, "react", PLAIN)
    assert tools is None
    line = "\n* read_file(path: string, start_line?: integer, end_line?: integer): Read a text file"
    assert line in messages[0]["content"]


@pytest.mark.parametrize("format", ["react", "bash"])
def test_the_form_that_is_shown_is_the_form_that_is_read(format):
    system = initial_messages("", "Go.", SPECS, format, PLAIN)[0][0]["content"]
    if format == "bash":
        shown = system.split("If the commands")[0].split("\n", 1)[1]
        assert parse("bash", shown, "stop", SPECS) == Calls((Call("bash", {"command": "command"}),), "")
        shown = system.split("of its own:\n")[1]
        assert parse("bash", shown, "stop", SPECS) == Calls((Call("submit", {"answer": "your answer"}),), "")
    else:
        shown = system.split("exactly these lines:\n")[1].split("\n\nThen")[0]
        shown = shown.replace("the name of one tool", "bash")
        shown = shown.replace("its arguments as one JSON object", '{"command": "ls"}')
        assert parse("react", shown, "stop", SPECS) == Calls((LS,), "what you think")


def test_no_system_message_where_there_is_nothing_to_say(demo):
    assert initial_messages("", "Go.", SPECS, "hermes", demo.template)[0] == [{"role": "user", "content": "Go."}]


def test_a_template_without_a_system_role():
    messages, _ = initial_messages("Be good.", "Go.", SPECS, "bash", template(STRICT))
    assert [message["role"] for message in messages] == ["user"]
    assert messages[0]["content"].startswith("Be good.\n\nAct by")
    assert messages[0]["content"].endswith("\n\nGo.")


def test_observations_of_hermes(demo):
    pairs = [(LS, ToolResult("ok", "a\nb")), (LS, ToolResult("error", "no such file", exit_code=2))]
    texts = ["a\nb", "no such file\n[exit code 2]"]
    assert observation_messages(pairs, "hermes", demo.template) == [
        {"role": "tool", "name": "bash", "content": text} for text in texts
    ]
    assert observation_messages(pairs, "hermes", template(DROPS_REASONING))[0]["role"] == "tool"
    (message,) = observation_messages(pairs, "hermes", PLAIN)
    assert message == {
        "role": "user",
        "content": "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts),
    }


@pytest.mark.parametrize(
    "result, react, bash",
    [
        (ToolResult("ok", "a\nb\n", exit_code=0), "a\nb\n", "[exit code 0]\na\nb\n"),
        (ToolResult("ok", "", exit_code=0), "(no output)", "[exit code 0]\n"),
        (ToolResult("error", "", exit_code=1), "[exit code 1]", "[exit code 1]\n"),
        (ToolResult("error", "no", exit_code=1), "no\n[exit code 1]", "[exit code 1]\nno"),
        (ToolResult("timeout", "killed"), "killed", "killed"),
    ],
)
def test_observations_of_one_call(result, react, bash):
    for format, told in (("react", f"Observation: {react}"), ("bash", bash)):
        assert observation_messages([(LS, result)], format, PLAIN) == [{"role": "user", "content": told}]


def test_what_a_malformed_action_is_answered_with():
    assert retry_messages("mend it", "hermes") == [{"role": "user", "content": "mend it"}]
    assert retry_messages("mend it", "react") == [{"role": "user", "content": "Observation: mend it"}]
