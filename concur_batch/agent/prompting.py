"""What an agent is told, per action format: how to act, what its tools are, what a call returned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from concur_batch.agent.template import Message, Tools
from tools_env.spec import ToolResult, ToolSpec

if TYPE_CHECKING:
    from concur_batch.agent.actions import Call

Format = Literal["react", "hermes", "bash"]


class Medium(Protocol):
    """What can be said in roles of its own: by a chat template, or in OpenAI's protocol."""

    @property
    def takes_system(self) -> bool: ...

    @property
    def takes_tools(self) -> bool: ...

    @property
    def takes_tool_role(self) -> bool: ...


# The wording that models tuned on Hermes function calling were trained with.
_HERMES = """\
# Tools

You may call one or more functions to assist with the user query. Here are their signatures within <tools></tools>:
<tools>
{schemas}
</tools>

For each function call, return a JSON object with its name and arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

_REACT = """\
You can use these tools:
{tools}

Use one tool at a time, in exactly these lines:
Thought: what you think
Action: the name of one tool
Action Input: its arguments as one JSON object

Then stop: the result follows as a line `Observation:`. When you are done, write instead:
Thought: what you think
Final Answer: your answer"""

_BASH = """\
Act by writing exactly one fenced block; its commands are run by bash, and the output is given to you:
```bash
command
```
If the commands themselves hold lines of ```, fence the block with ````.
When you are done, give your answer in a block of its own:
```submit
your answer
```"""


def initial_messages(
    system: str, user: str, specs: Sequence[ToolSpec], format: Format, template: Medium
) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """The first messages, and the tools to render the template with (None: it is not to show any).

    hermes: the template shows the tools where it can, otherwise a section of the system prompt does. react, bash: a
    section of the system prompt. A template without a system role gets the system prompt at the head of the user's.
    """
    tools = None
    section = ""
    if format == "hermes":
        schemas = offered_tools(specs, format) or []
        if template.takes_tools:
            tools = schemas
        else:
            section = tools_section(schemas)
    elif format == "react":
        section = _REACT.format(tools="\n".join(map(_line, specs)))
    else:
        section = _BASH
    told = "\n\n".join(part for part in (system, section) if part)
    if not told:
        return [{"role": "user", "content": user}], tools
    if not template.takes_system:
        return [{"role": "user", "content": f"{told}\n\n{user}"}], tools
    return [{"role": "system", "content": told}, {"role": "user", "content": user}], tools


def tools_section(schemas: Tools) -> str:
    """The section of a system prompt that tells of tools where the template shows none."""
    return _HERMES.format(schemas="\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas))


def offered_tools(specs: Sequence[ToolSpec], format: Format) -> list[dict[str, Any]] | None:
    """The tools as OpenAI's protocol offers them; None for a format whose prompt tells of them."""
    return [tool_schema(spec) for spec in specs] if format == "hermes" else None


def observation_role(format: Format, template: Medium) -> str:
    """The role in which observations come back."""
    return "tool" if format == "hermes" and template.takes_tool_role else "user"


def observation_messages(results: Sequence[tuple[Call, ToolResult]], format: Format, template: Medium) -> list[Message]:
    """What the calls of one turn returned, in the order in which they were made.

    hermes: a `tool` message for each call, or one user message of <tool_response> blocks where the template has no such
    role. react: `Observation:`. bash: the exit code, then the output.
    """
    texts = [_text(result, format) for _, result in results]
    if observation_role(format, template) == "tool":
        return [
            {"role": "tool", "name": call.name, "content": text} for (call, _), text in zip(results, texts, strict=True)
        ]
    if format == "hermes":
        texts = [f"<tool_response>\n{text}\n</tool_response>" for text in texts]
    elif format == "react":
        texts = [f"Observation: {text}" for text in texts]
    return [{"role": "user", "content": "\n".join(texts)}]


def retry_messages(reason: str, format: Format) -> list[Message]:
    """What a malformed action is answered with; `reason` says what to mend."""
    return [{"role": "user", "content": f"Observation: {reason}" if format == "react" else reason}]


def _text(result: ToolResult, format: Format) -> str:
    """The output, with what it alone does not tell: an exit code, and that it is empty."""
    if format == "bash" and result.exit_code is not None:
        return f"[exit code {result.exit_code}]\n{result.output}"
    if result.exit_code:
        return f"{result.output}\n[exit code {result.exit_code}]".lstrip("\n")
    return result.output or "(no output)"


def tool_schema(spec: ToolSpec) -> dict[str, Any]:
    """A tool as OpenAI's protocol and chat templates take it."""
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def _line(spec: ToolSpec) -> str:
    """A tool in one line: `read_file(path: string, start_line?: integer): Read a text file.`"""
    required = spec.parameters.get("required", [])
    arguments = ", ".join(
        f"{name}{'' if name in required else '?'}: {field.get('type', 'any')}"
        for name, field in spec.parameters.get("properties", {}).items()
    )
    return f"* {spec.name}({arguments}): {spec.description}"
