"""What a turn's text asks for: tool calls, an answer, or nothing that can be made out.

Rules of every format:
* A turn is taken whole or not at all: one malformed call makes the turn malformed, and nothing of it is executed.
* A turn that its token limit cut is truncated and nothing of it is executed, also where calls in it are complete, since
  others may have been to follow. Exception: the model had ended its action by writing the observation itself.
* An observation that the model writes itself, and all after it, is ignored. (Its ids stay in the history, as sampled.)
* Reasoning in <think>...</think> holds no action.

hermes: any number of <tool_call> blocks, to run in their order; the same call again in one turn counts once. Text
without a block is the final answer. react: one Action with its Action Input, or a Final Answer. bash: one fenced block,
`bash` for commands and `submit` for the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from concur_batch.agent.formats.action import Action, Answer, Call, Calls, Malformed, Truncated
from concur_batch.agent.formats.bash import parse_bash
from concur_batch.agent.formats.hermes import parse_hermes
from concur_batch.agent.formats.react import parse_react
from concur_batch.agent.prompting import Format
from concur_batch.engine.protocol import FinishReason
from tools_env.spec import ToolSpec

__all__ = ["Action", "Answer", "Call", "Calls", "Malformed", "Truncated", "parse"]

_PARSERS = {"hermes": parse_hermes, "react": parse_react, "bash": parse_bash}


def parse(
    format: Format, text: str, finish_reason: FinishReason, specs: Sequence[ToolSpec], *, thinking: bool = False
) -> Action:
    """The action of one turn's `text`. `thinking`: the prompt ended inside <think>, so the text begins there.

    Takes time linear in the text, whatever it is.
    """
    if thinking:
        text = "<think>" + text
    complete = finish_reason == "stop"
    return _PARSERS[format](text, complete, {spec.name: spec for spec in specs})
