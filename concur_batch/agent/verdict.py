"""The check of an agent's result, after its end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from concur_batch.agent.spec import AnswerCheck, CommandCheck
from tools_env.sandbox import SandboxSession
from tools_env.spec import Session
from tools_env.verify import NoRoom, verify_answer, verify_command


async def judge(
    check: CommandCheck | AnswerCheck, answer: str | None, workspace: Callable[[], Awaitable[Session]]
) -> dict[str, Any]:
    """The reward columns of an agent's row. A check that could not be run leaves the reward null and says why.

    Raises NoRoom where the disk is full, which is not for long: it may be called again.

    `workspace` gives the agent's session, and opens one for an agent that ended before its first turn.
    """
    began = time.monotonic()
    reward: float | None = None
    output: str | None = None
    try:
        match check:
            case AnswerCheck():
                reward = verify_answer(answer, check.expected, check.match)
            case CommandCheck():
                session = await workspace()
                assert isinstance(session, SandboxSession)  # a workload with such a check has a sandbox
                verdict = await verify_command(session, check.command, check.files, check.deadline_seconds)
                reward, output = verdict.reward, verdict.output
    except NoRoom:
        raise
    except Exception as error:  # whatever it was, it says nothing of the agent's work
        output = f"the check could not be run: {type(error).__name__}: {error}"
    return {"reward": reward, "verify_output": output, "verify_seconds": time.monotonic() - began}
