"""What is read out of a turn's text, format by format, and that hostile text costs no more than its length."""

from __future__ import annotations

import json
import time

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.actions import Answer, Call, Calls, Malformed, Truncated, parse
from tools_env.catalogue import CATALOGUE
from tools_env.spec import ToolSpec

unhurried = settings(deadline=None)

NOTHING = ToolSpec("look", "Look around.", {"type": "object", "properties": {}, "required": []})
STEP = ToolSpec("work", "Work.", {"type": "object", "properties": {"step": {"type": "integer"}}, "required": ["step"]})
SPECS = [*CATALOGUE.values(), NOTHING, STEP]


def hermes(text, finish_reason="stop", **options):
    return parse("hermes", text, finish_reason, SPECS, **options)


def react(text, finish_reason="stop", **options):
    return parse("react", text, finish_reason, SPECS, **options)


def bash(text, finish_reason="stop", specs=SPECS, **options):
    return parse("bash", text, finish_reason, specs, **options)


def block(name="bash", key="arguments", **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, key: arguments})}\n</tool_call>"


def ls(thought="", command="ls"):
    return Calls((Call("bash", {"command": command}),), thought)


def malformed(action, *told):
    assert isinstance(action, Malformed), action
    for words in told:
        assert words in action.reason


class TestHermes:
    @pytest.mark.parametrize(
        "text, action",
        [
            (block(command="ls"), ls()),
            ("I look.\n" + block(command="ls") + "\n", ls("I look.")),
            (block(key="parameters", command="ls"), ls()),
            ('<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>', ls()),
            ('<tool_call> {"arguments": {"command": "ls"}, "name": "bash"} </tool_call>', ls()),
            ('<tool_call>{"name": "bash", "arguments": {"command": "a\nb"}}</tool_call>', ls(command="a\nb")),
            (block(command="ls").removesuffix("\n</tool_call>"), ls()),  # closed by the end of the turn
            (block("look"), Calls((Call("look", {}),), "")),
            ('<tool_call>{"name": "look"}</tool_call>', Calls((Call("look", {}),), "")),
            ('<tool_call>{"name": "look", "arguments": null}</tool_call>', Calls((Call("look", {}),), "")),
            (block(command="echo '</tool_call><think>'"), ls(command="echo '</tool_call><think>'")),
            (block(command="ls") + "\n<tool_response>\nmade up\n</tool_response>" + block(command="rm"), ls()),
            (block(command="ls") + block(command="ls"), ls()),
            ("<think>\n" + block(command="rm") + "</think>\n" + block(command="ls"), ls()),
            (block(command="rm") + "</think>so:" + block(command="ls"), ls("so:")),
            ("reasoning</think>42", Answer("42")),
            ("<think>a</think>b" + block(command="ls") + "<think>" + block(command="rm") + "</think>", ls("b")),
            ("42", Answer("42")),
            ("<think>hm</think>\n\nIt is 42.\n", Answer("It is 42.")),
            ("42<tool_response>made up", Answer("42")),
            ('{"name": "Ann"}', Answer('{"name": "Ann"}')),
            (block("delete"), "there is no tool 'delete'; the tools are: bash, python"),
            ("", "reply is empty"),
            ("<think>only thought</think>", "reply is empty"),
            ("<think>" + block(command="ls"), "reasoning was not closed"),
            ("<tool_call>{'name': 'bash'}</tool_call>", "double quotes"),
            ('<tool_call>{"name": "bash", "arguments": {"command": "ls",}}</tool_call>', "trailing commas"),
            (block(command="ls").replace("}}", "}}}"), "must follow the JSON object, not '}"),
            ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}} ok</tool_call>', "not 'ok</tool_call>'"),
            ('<tool_call>{"name": "bash"}</tool_call>', 'must hold "arguments"'),
            ('<tool_call>{"name": "bash", "arguments": ["ls"]}</tool_call>', 'such as {"command": "..."}'),
            ('<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>', "does not parse"),
            ('<tool_call>{"name": "bash", "arguments": "{} {}"}</tool_call>', "nothing may follow"),
            ('<tool_call>[{"name": "bash"}]</tool_call>', "one JSON object"),
            ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', "one JSON object"),
            ('<tool_call>{"name": "work", "arguments": {"step": NaN}}</tool_call>', "NaN"),
            ('<tool_call>{"name": "work", "arguments": {"step": ' + "9" * 30 + "}}</tool_call>", "cannot be used"),
            ('<tool_call>{"name": "work", "arguments": {"step": ' + "9" * 5000 + "}}</tool_call>", "does not parse"),
            ('<tool_call>{"name": "bash", "arguments": {"command": "\\ud800"}}</tool_call>', "cannot be used"),
            ("<tool_call>" + "[" * 100_000, "nested too deeply"),
            (block(command="ls") + "<tool_call>{</tool_call>", "does not parse"),  # all or nothing
            ("I run ls.\n</tool_call>", "without <tool_call>"),
            ('{"name": "bash", "arguments": {"command": "ls"}}', "must stand in <tool_call> tags"),
        ],
    )
    def test_examples(self, text, action):
        if isinstance(action, str):
            malformed(hermes(text), action)
        else:
            assert hermes(text) == action

    def test_several_calls_run_in_order(self):
        action = hermes("go" + "\n".join(block(command=command) for command in "abca"))
        assert action == Calls(tuple(Call("bash", {"command": command}) for command in "abc"), "go")

    def test_the_order_of_arguments_makes_no_other_call(self):
        one, other = block("edit_file", path="a", old="b", new="c"), block("edit_file", new="c", old="b", path="a")
        assert len(hermes(one + other).calls) == 1

    def test_calls_that_differ_in_kind_alone_are_not_the_same(self):
        action = hermes(block("work", step=1) + block("work", step=True) + block("work", step=1.0))
        assert [call.arguments["step"] for call in action.calls] == [1, True, 1.0]

    def test_a_prompt_that_opens_the_reasoning(self):
        assert hermes(block(command="rm") + "</think>" + block(command="ls"), thinking=True) == ls()
        malformed(hermes("still thinking", thinking=True), "not closed")
        assert hermes("still thinking", "length", thinking=True) == Truncated()

    @pytest.mark.parametrize("reason", ["length", "abort"])
    def test_a_cut_turn_is_never_executed(self, reason):
        whole = "I look." + block(command="ls") + block(command="rm -r /workspace/a")
        for size in range(len(whole) + 1):
            assert hermes(whole[:size], reason) == Truncated()

    def test_unless_the_model_had_gone_on_to_the_result(self):
        assert hermes(block(command="ls") + "\n<tool_response>\nmade", "length") == ls()
        assert hermes("<tool_response>\nmade", "length") == Truncated()


class TestReact:
    FORM = "Thought: I look.\nAction: bash\nAction Input: "

    @pytest.mark.parametrize(
        "text, action",
        [
            (FORM + '{"command": "ls"}', ls("I look.")),
            (FORM + '{\n  "command":\n    "ls"\n}\n', ls("I look.")),
            (FORM + "ls", ls("I look.")),
            (FORM + '"ls"', ls("I look.")),
            (FORM + '"a" "b"', ls("I look.", '"a" "b"')),
            (FORM + "\nls -l\nls", ls("I look.", "ls -l\nls")),
            (FORM + "```bash\nls\n```", ls("I look.")),
            (FORM + '\n```json\n{"command": "ls"}\n```\n', ls("I look.")),
            (FORM + '{"command": "ls"}\nObservation: made up\nAction: python', ls("I look.")),
            (FORM + "ls\nObservation: made up", ls("I look.")),
            (FORM + '{"command": "ls"}\nThought: then\nFinal Answer: 3', ls("I look.")),
            (FORM + '{"command": "a\nObservation: b"}', ls("I look.", "a\nObservation: b")),
            ("**Thought:** I look.\n**Action:** `bash`\n**Action Input:** ls", ls("I look.")),
            ("Action: look", Calls((Call("look", {}),), "")),
            ("Action: look\nAction Input: {}", Calls((Call("look", {}),), "")),
            ('Action: work\nAction Input: {"step": 1}', Calls((Call("work", {"step": 1}),), "")),
            ("<think>Action: python\nAction Input: 1</think>Action: bash\nAction Input: ls", ls()),
            ("Thought: <think>\nAction: look\n</think>\nAction: bash\nAction Input: ls", ls()),
            (FORM + "echo '<think>'", ls("I look.", "echo '<think>'")),
            ("Thought: done\nFinal Answer: 42\nand more\nObservation: x", Answer("42\nand more")),
            ("Final Answer: 42\nAction: bash\nAction Input: rm", Answer("42\nAction: bash\nAction Input: rm")),
            ("I think it is 42.", "the reply has no Action"),
            ("", "the reply has no Action"),
            ("Observation: made up\nAction: bash\nAction Input: ls", "the reply has no Action"),
            ("Action: bash", "needs its arguments"),
            ("Action: bash\nThought: x\nAction Input: ls", "needs its arguments"),
            ("Action: delete\nAction Input: x", "there is no tool 'delete'"),
            ("Action:\nAction Input: x", "there is no tool ''"),
            ("Action: work\nAction Input: 3", "must be one JSON object"),
            ("Action: work\nAction Input: three", "does not parse"),
            ("Action: work\nAction Input: {'step': 3}", "double quotes"),
            (FORM + '{"command": "ls",}', "trailing commas"),
            (FORM + '{"command": "ls"} and then', "nothing may follow"),
            (FORM + "ls\nAction: python\nAction Input: 1", "one Action at a time"),
            (FORM + '{"command": "ls"}\nAction: look', "one Action at a time"),
            ("Final Answer:  ", "Final Answer is empty"),
            ("<think>Action: look", "reasoning was not closed"),
        ],
    )
    def test_examples(self, text, action):
        if isinstance(action, str):
            malformed(react(text), action)
        else:
            assert react(text) == action

    def test_a_cut_turn_is_never_executed(self):
        whole = self.FORM + '{"command": "ls"}\n'
        for size in range(len(whole) + 1):
            assert react(whole[:size], "length") == Truncated()
        assert react("Final Answer: 4", "length") == Truncated()

    def test_unless_the_model_had_gone_on_to_the_observation(self):
        assert react(self.FORM + '{"command": "ls"}\nObservation: ma', "length") == ls("I look.")
        assert react("Final Answer: 42\nObservation: ma", "length") == Answer("42")


class TestBash:
    @pytest.mark.parametrize(
        "text, action",
        [
            ("```bash\nls\n```", ls()),
            ("I look.\n\n```sh\nls\n```\nThat lists.", ls("I look.")),
            ("```Shell \r\nls\r\n```\r\n", ls()),
            ("```bash\na\n\n  b\n```", ls(command="a\n\n  b")),
            ("```python\n1\n```\nas bash:\n```bash\nls\n```", ls("```python\n1\n```\nas bash:")),
            ("```bash\ncat > a <<E\n```python\n1\n```\nE\n```", ls(command="cat > a <<E\n```python\n1\n```\nE")),
            ("````bash\ncat > a <<E\n```\n1\n```\nE\n````", ls(command="cat > a <<E\n```\n1\n```\nE")),
            ("```bash\necho '```'\n```", ls(command="echo '```'")),
            ("<think>\n```bash\nrm\n```\n</think>\n```bash\nls\n```", ls()),
            ("```bash\necho '<think>'\n```", ls(command="echo '<think>'")),
            ("done\n```submit\n 42\n```", Calls((Call("submit", {"answer": "42"}),), "done")),
            ("I would run ls.", "no block for bash"),
            ("", "no block for bash"),
            ("```\nls\n```", "no block for bash"),
            ("```python\n1\n```", "no block for bash"),
            ("```bash ls```", "no block for bash"),
            ("```bash\nls\n```\n```bash\nrm\n```", "another fence follows"),
            ("```bash\ncat > a <<E\n```\n1\n```\nE\n```", "fence with ````"),
            ("```bash\nls", "not closed"),
            ("```bash\n\n```", "block is empty"),
            ("```bash\n```", "block is empty"),
            ("<think>\n```bash\nls\n```", "reasoning was not closed"),
        ],
    )
    def test_examples(self, text, action):
        if isinstance(action, str):
            malformed(bash(text), action)
        else:
            assert bash(text) == action

    def test_without_the_tools(self):
        assert bash("```submit\n42\n```", specs=[CATALOGUE["bash"]]) == Answer("42")
        malformed(bash("```bash\nls\n```", specs=[CATALOGUE["python"]]), "there is no tool 'bash'")

    def test_a_cut_turn_is_never_executed(self):
        whole = "```bash\nls\n```\nand"
        for size in range(len(whole) + 1):
            assert bash(whole[:size], "length") == Truncated()


FORMATS = ["hermes", "react", "bash"]
PIECES = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "```", "```bash\n", "````", "\n", " "),
    *("Action: bash\n", "Action Input:", "Observation:", "Final Answer:", "Thought:", "**", ":", "\r\n", "submit"),
    *('{"name": "bash", "arguments": {"command": "ls"}}', "{", "}", "[", '"', "\\", ",", "a", "\ufffd", "\0", "é😀"),
]


@pytest.mark.parametrize("format", FORMATS)
@unhurried
@given(pieces=st.lists(st.sampled_from(PIECES)), finish=st.sampled_from(["stop", "length"]), thinking=st.booleans())
def test_any_text_gives_an_action_that_can_be_recorded(format, pieces, finish, thinking):
    action = parse(format, "".join(pieces), finish, SPECS, thinking=thinking)
    match action:
        case Calls(calls=calls):
            assert calls
            assert all(call.name in {spec.name for spec in SPECS} for call in calls)
            orjson.dumps([call.arguments for call in calls])
        case Answer(text=text):
            assert text.strip() == text != ""
        case Malformed(reason=reason):
            assert 0 < len(reason) < 1000
        case _:
            assert finish == "length" and action == Truncated()


@pytest.mark.parametrize("format", FORMATS)
@unhurried
@given(text=st.text())
def test_any_text_at_all(format, text):
    parse(format, text, "stop", SPECS)


def seconds(format: str, unit: str, size: int) -> float:
    text = unit * (size // len(unit))
    began = time.process_time()
    parse(format, text, "stop", SPECS)
    return time.process_time() - began


@pytest.mark.parametrize("format", FORMATS)
@unhurried
@given(unit=st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join))
def test_repetition_costs_no_more_than_its_length(format, unit):
    """A quadratic reader would take minutes for this; a linear one takes a fraction of a second at most."""
    assert seconds(format, unit, 200_000) < 2.0


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "unit",
    ['<tool_call>["', '<tool_call>["x",', "`", " ", "\n", "*", "<think>\n", '"\\', "``` ", "</think><tool_call>{"],
)
def test_known_traps(format, unit):
    assert seconds(format, unit, 500_000) < 4.0
