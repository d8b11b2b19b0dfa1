"""`concur doctor`: whether a run would go well on this machine, with this engine and this tokenizer."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.text import Text

from concur_batch.agent.prompting import Format, initial_messages, observation_role
from concur_batch.agent.rollout import sampling_parameters
from concur_batch.agent.template import TemplateError
from concur_batch.agent.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from concur_batch.cli.refusal import refuse
from concur_batch.doctor.engine import inspect_engine
from concur_batch.doctor.finding import Finding, Verdict, failure, ok, warning
from concur_batch.doctor.machine import inspect_machine
from concur_batch.doctor.tokenizer import inspect_tokenizer
from concur_batch.driver.driver import AGENTS_PER_HOST
from concur_batch.engine.pools import EngineKind
from concur_batch.foreign.file import count_agents
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run
from concur_batch.workload.dryrun import tool_specs
from concur_batch.workload.errors import InputError, shown_path
from concur_batch.workload.explain import one_of
from concur_batch.workload.loading import Loaded, load, load_tasks
from concur_batch.workload.schema import LaunchedEngine, SandboxTools, SimulatedEngine
from tools_env.spec import ToolSpec

_STYLES: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}


@dataclass(frozen=True, slots=True)
class _Patient:
    """What is examined: by the options, or by a workload."""

    output: Path = Path("runs")
    agents_on_host: int = AGENTS_PER_HOST
    sandboxed: bool = True
    urls: tuple[str, ...] = ()
    kind: EngineKind | None = None
    api_key: str | None = None
    model: str = ""
    unasked: Finding | None = None
    tokenizer: Path | None = None
    format: Format = "hermes"
    specs: tuple[ToolSpec, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    limit_tokens: int | None = None


def doctor(
    workload: Annotated[
        Path | None, typer.Argument(help="Examine what this workload needs.", metavar="[WORKLOAD.YAML]")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Examine the server at this URL.", metavar="URL")] = None,
    kind: Annotated[
        str | None, typer.Option(help="What it is: sglang, vllm or openai. Default: found out.", metavar="KIND")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Examine this model directory, and compare it with the server.", metavar="DIR")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Ask this Ray cluster instead of starting one. [env: RAY_ADDRESS]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the machine, and if given the engine and the tokenizer: a line each, with the mend."""
    if kind is not None and kind not in get_args(EngineKind):
        refuse(f"concur: --kind {kind}: no such kind; {one_of(kind, get_args(EngineKind))}", 2)
    if kind is not None and engine is None:
        refuse("concur: --kind says what the server is: give its URL as --engine", 2)
    if engine is not None and not engine.startswith(("http://", "https://")):
        refuse(f"concur: --engine {engine}: not a URL such as http://gpu-7:30000", 2)
    try:
        patient = _Patient() if workload is None else _of_workload(load(workload))
    except InputError as error:
        refuse(str(error), 2)
    except TraceError as error:
        refuse(f"concur: {error}", 2)
    if engine is not None:
        patient = replace(patient, urls=(engine.rstrip("/"),), kind=cast(EngineKind | None, kind), unasked=None)
    if tokenizer is not None:
        patient = replace(patient, tokenizer=tokenizer)
    report = _Report(Console(), as_json)
    asyncio.run(_examine(patient, ray_address, report))
    sys.exit(report.end())


class _Report:
    """Prints findings as they come, or all of them at the end as JSON."""

    def __init__(self, console: Console, as_json: bool) -> None:
        self._console = console
        self._as_json = as_json
        self._found: list[tuple[str, Finding]] = []

    def add(self, subject: str, finding: Finding) -> None:
        if not self._as_json:
            if not self._found or self._found[-1][0] != subject:
                self._console.print(Text(subject, style="bold"), soft_wrap=True)
            line = Text.assemble((f"{finding.verdict:<8}", _STYLES[finding.verdict]), f"{finding.name}: {finding.seen}")
            self._console.print(Text("  ") + line, soft_wrap=True)
            if finding.mend:
                self._console.print(f"          {finding.mend}", soft_wrap=True, highlight=False, markup=False)
        self._found.append((subject, finding))

    def end(self) -> int:
        """The exit code: 1 with any failure."""
        counts = Counter(finding.verdict for _, finding in self._found)
        if self._as_json:
            totals = {f"{verdict}s" if verdict != "ok" else verdict: counts[verdict] for verdict in _STYLES}
            print(
                json.dumps(totals | {"findings": [{"subject": name, **asdict(found)} for name, found in self._found]})
            )
        else:
            said = (
                f"{counts[verdict]} {verdict}" + "s" * (verdict != "ok" and counts[verdict] != 1) for verdict in _STYLES
            )
            self._console.print(", ".join(said), highlight=False)
        return 1 if counts["failure"] else 0


def _agents(loaded: Loaded) -> int:
    """How many agents would run, at most."""
    workload = loaded.workload
    if workload.tasks is not None:
        return len(load_tasks(loaded)) * workload.tasks.samples
    assert workload.replay is not None, "a workload has tasks or a replay"
    if workload.replay.synthetic is not None:
        return workload.replay.synthetic.agents
    if workload.replay.file is not None:
        return count_agents(workload.replay.file)
    assert workload.replay.run is not None, "a replay has one source"
    return int(Run(workload.replay.run).manifest["agents"])


def _of_workload(loaded: Loaded) -> _Patient:
    """Raises InputError where the tasks are wrong."""
    workload = loaded.workload
    agents = _agents(loaded)
    hosts = workload.agent.hosts or -(-agents // AGENTS_PER_HOST)
    section = workload.engine
    patient = _Patient(
        output=workload.output,
        agents_on_host=-(-agents // hosts),
        sandboxed=isinstance(workload.tools, SandboxTools),
        tokenizer=workload.model.tokenizer,
        format=workload.agent.format,
        specs=tuple(tool_specs(workload.tools)),
        sampling=sampling_parameters(workload.model.sampling),
        model=workload.model.name,
        limit_tokens=workload.agent.limits.context_tokens,
    )
    if isinstance(section, SimulatedEngine):
        return replace(patient, unasked=ok("served", "simulated: it comes with the run"))
    if isinstance(section, LaunchedEngine) and section.launch is not None:
        mend = "start it by hand and give its URL as --engine"
        return replace(patient, unasked=warning("served", "the run launches it: it cannot be asked now", mend))
    urls = tuple(url.rstrip("/") for url in ([section.url] if section.url is not None else section.urls))
    key = os.environ[section.api_key] if section.api_key is not None else None  # loading has seen it
    return replace(patient, urls=urls, kind=section.kind, api_key=key)


async def _examine(patient: _Patient, ray_address: str | None, report: _Report) -> None:
    for finding in inspect_machine(
        patient.output, patient.agents_on_host, sandboxed=patient.sandboxed, ray_address=ray_address
    ):
        report.add("machine", finding)
    tokenizer = _examine_tokenizer(patient, report)
    if patient.unasked is not None:
        report.add("engine", patient.unasked)
    for url in patient.urls:
        findings = inspect_engine(
            url, patient.kind, patient.api_key, patient.sampling, tokenizer, patient.limit_tokens, patient.model
        )
        async for finding in findings:
            report.add(f"engine {url}", finding)


def _examine_tokenizer(patient: _Patient, report: _Report) -> Tokenizer | None:
    directory = patient.tokenizer
    if directory is None:
        return None
    subject = f"tokenizer {shown_path(directory)}"
    try:
        tokenizer = load_tokenizer(directory)
        _, tools = initial_messages("", "", patient.specs, patient.format, tokenizer.template)
        role = observation_role(patient.format, tokenizer.template)
        for finding in inspect_tokenizer(directory, tokenizer, tools or None, role):
            report.add(subject, finding)
    except (TokenizerError, TemplateError) as error:
        report.add(subject, failure("files", str(error), "give a model directory as on the Hugging Face hub"))
        return None
    return tokenizer
