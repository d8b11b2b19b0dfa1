"""Runs a batch: engine, recorders, controller and hosts up, agents to their ends, everything down again."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from concur_batch.agent.config import HostConfig
from concur_batch.agent.host import AgentHost
from concur_batch.agent.prompting import offered_tools
from concur_batch.agent.rollout import sampling_parameters
from concur_batch.agent.spec import AgentSpec
from concur_batch.control.controller import Controller, ControllerConfig
from concur_batch.control.orders import ORDERS
from concur_batch.control.rules import CHOICES, make_rules
from concur_batch.driver.cluster import Cluster, Node, answer, answers, await_ref
from concur_batch.driver.directory import model_of, put_model
from concur_batch.driver.engines import RunningEngine, start_engine
from concur_batch.driver.missing import missing_notes
from concur_batch.driver.operate import controller_name, whereabouts
from concur_batch.driver.past import account_of, going_on, life_of, read_past
from concur_batch.driver.recorders import Recorders
from concur_batch.driver.silence import SILENT_SECONDS, Silence
from concur_batch.driver.snapshot import Snapshot, join
from concur_batch.engine.clients import connect
from concur_batch.engine.openai import OpenaiEngine
from concur_batch.engine.pools import Replica, name_pools
from concur_batch.engine.protocol import EngineInfo
from concur_batch.simulator.metrics import SIMULATED
from concur_batch.trace.ending import finish
from concur_batch.trace.files import TraceError
from concur_batch.trace.manifest import read_manifest, update_manifest, write_manifest
from concur_batch.trace.reading import Run
from concur_batch.workload.dryrun import tool_specs
from concur_batch.workload.schema import OpenaiEngine as OpenaiSection
from concur_batch.workload.schema import ServerEngine, SglangEngine, SimulatedEngine, Workload

AGENTS_PER_HOST = 2000
_POLL_SECONDS = 0.5
# A batch whose hosts die over and over is not saved by one more.
_HOST_REPLACEMENTS = 8
_HOST_STARTS = 3
# How long the turns that are under way at a signal may take to end; then they are given up, to be done again.
_GRACE_SECONDS = 30.0
# How long a run that is being stopped waits for what may never come: a full disk, an engine that is gone.
_STUCK_SECONDS = 15.0
# How long a host may take to let go of its agents. One that hangs is ended then.
_CLOSE_SECONDS = 30.0
_CONTROLLER = "the controller"
# What a resume brings an agent's tools back from, by their kind.
_RESTORED_FROM = {"sandbox": "a snapshot of the workspace", "synthetic": "the number of calls"}
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `signal` is the number of the signal that stopped it, if one did."""

    run_dir: Path
    signal: int | None


@dataclass(frozen=True, slots=True)
class Before:
    """A run that goes on: the ids of all its agents in their order, when it first began (wall clock), for how many
    seconds it has been running, and the account of what is on record (see `past.account_of`)."""

    everyone: Sequence[str]
    started_at: float
    seconds: float
    account: Mapping[str, Any]


class _Stopped(Exception):
    """A signal came before the first agent started."""


class RunFailed(Exception):
    """The batch could not go on; one line. What was recorded is safe."""


class Driver:
    """One run, on a cluster that is already up. `on_snapshot` is called twice a second, `on_note` with news.

    `agents` are those that have not ended, `before` what is known of a run that goes on.
    """

    def __init__(
        self,
        workload: Workload,
        system: str,
        agents: Sequence[AgentSpec],
        run_dir: Path,
        cluster: Cluster,
        on_snapshot: Callable[[Snapshot], None],
        on_note: Callable[[str], None],
        before: Before | None = None,
    ) -> None:
        self._workload = workload
        self._system = system
        self._agents = agents
        self._run_dir = run_dir
        self._cluster = cluster
        self._on_snapshot = on_snapshot
        self._on_note = on_note
        self._hosts: dict[str, Any] = {}
        self._work: dict[asyncio.Task[Any], tuple[str, list[AgentSpec]]] = {}
        self._controller: Any = None
        self._engine: RunningEngine | None = None
        self._host_number = 0
        self._signal: int | None = None
        self._enough = asyncio.Event()  # nothing is waited for any more but what brings the run down
        self._hard_stop = asyncio.Event()  # nor for that
        self._stuck_since = 0.0
        self._silence = Silence(SILENT_SECONDS)
        before = before or Before([agent.agent_id for agent in agents], time.time(), 0.0, {})
        self._total = len(before.everyone)
        self._number_of = {agent_id: number for number, agent_id in enumerate(before.everyone)}
        self._started_at = before.started_at
        self._zero_at = time.time() - before.seconds  # time in which it did not run does not count
        self._zero_seconds = time.monotonic() - before.seconds
        self._snapshot = Snapshot(before.seconds, self._total)
        # Each host's last one; where it has died, what is on record of its agents; and what was there before.
        self._accounts: dict[str, Mapping[str, Any]] = {"before": before.account} if before.account else {}

    async def run(self, manifest: dict[str, Any]) -> Outcome:
        """Run all agents. Raises EngineError or RunFailed; whatever happens, what was started is stopped."""
        self._tables = manifest.get("tables")  # their URI, where it is not the run directory
        self._life = life_of(manifest)
        self._recorders = Recorders(self._cluster, self._run_dir, self._tables)
        write_manifest(self._run_dir, {**manifest, **self._facts(), "status": "running"})
        left: str | None = None
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            await self._start()
            await self._work_off()
            await self._look()
        except _Stopped:  # before the first agent started
            pass
        except RayError as error:
            raise RunFailed(f"Ray failed: {_cause(error)}") from None
        finally:
            await self._stop()
            seconds = self._elapsed()
            status, left = await self._finish()
            lag_seconds = self._snapshot.loop_lag_p99_seconds
            update_manifest(
                self._run_dir,
                status=status,
                seconds=seconds,
                loop_lag_p99_seconds=round(lag_seconds, 4),
                live=None,
            )
            for number in STOP_SIGNALS:  # what is left is to say how it ended: nothing there is worth stopping
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
        if left is not None:
            raise RunFailed(f"the run cannot be finished: {left}; what was recorded is safe")
        return Outcome(self._run_dir, self._signal)

    async def _start(self) -> None:
        workload, nodes = self._workload, self._cluster.nodes()
        section = workload.engine
        self._engine = await self._unless_stopped(start_engine(workload, self._cluster, self._run_dir, self._on_note))
        infos = await self._unless_stopped(asyncio.gather(*map(self._probe, self._engine.replicas)))
        self._pools = name_pools(self._engine.replicas, infos)
        self._context_tokens = self._longest_context(infos)
        # A server of ours that serves the simulation says so, whoever started it.
        simulated = isinstance(section, SimulatedEngine) or any(info.version == SIMULATED for info in infos)
        update_manifest(
            self._run_dir,
            engine=[asdict(info) for info in infos],
            pools={pool.name: pool.tokens for pool in self._pools},
            simulated=simulated,
            ids_estimated=isinstance(section, OpenaiSection),
            nodes=[node.address for node in nodes],
        )
        for note in missing_notes(infos, workload.control):
            self._on_note(note)
        count = workload.agent.hosts or max(len(nodes), -(-self._total // AGENTS_PER_HOST))
        count = min(count, max(1, self._total))
        places = [nodes[index % len(nodes)] for index in range(count)]
        self._recorders.start({node.id: node for node in places}.values())
        if self._tables is not None:  # the nodes need not share a disk
            others = self._recorders.nodes()[1:]
            model = model_of(self._run_dir)
            await self._unless_stopped(self._cluster.on_nodes(others, put_model, self._run_dir, model))
            manifest = read_manifest(self._run_dir)  # it says where the tables are
            await self._unless_stopped(self._cluster.on_nodes(others, write_manifest, self._run_dir, manifest))
        name = controller_name(self._run_dir.name)
        self._controller = self._cluster.actor(Controller, nodes[0], restarts=-1, name=name).remote(
            ControllerConfig(
                run=self._run_dir.name,
                started_at=self._zero_at,
                pools=self._pools,
                control=workload.control,
                agents=len(self._agents),
                hosts=count,
                orders=self._run_dir / ORDERS,
            ),
            f"{self._run_dir.name}/recorder0",
        )
        await self._unless_stopped(self._open_controller())
        update_manifest(self._run_dir, live=whereabouts(self._cluster.address))
        on_node = -(-count // len(nodes))
        hosts = await self._unless_stopped(asyncio.gather(*(self._add_host(node, on_node) for node in places)))
        for index, host in enumerate(hosts):
            # On the same nodes an agent is where it was before, and where its workspace was saved.
            self._assign(host, [agent for agent in self._agents if self._number_of[agent.agent_id] % count == index])

    async def _probe(self, replica: Replica) -> EngineInfo:
        workload = self._workload
        section, forced = workload.engine, workload.replay is not None
        sampling = sampling_parameters(workload.model.sampling, forced=forced)
        client = connect(replica.kind, replica.url, 30, 3, replica.api_key, replica.model)
        try:
            if not isinstance(client, OpenaiEngine):
                return await client.probe(sampling)
            info = await client.probe(sampling, offered_tools(tool_specs(workload.tools), workload.agent.format))
            size = section.pool_tokens if isinstance(section, OpenaiSection) else None
            return replace(info, pool_tokens=size, pool_tokens_by_rank=(size,))
        finally:
            await client.close()

    def _longest_context(self, infos: Sequence[EngineInfo]) -> int:
        """How long a history may be, by the workload and by the models' contexts. A pool's size is a limit apart."""
        contexts = (self._workload.agent.limits.context_tokens, *(info.context_tokens for info in infos))
        known = [tokens for tokens in contexts if tokens is not None]
        known = known or [pool.tokens for pool in self._pools if pool.tokens is not None]
        if not known:
            raise RunFailed("the engine tells no context length: set agent.limits.context_tokens")
        return min(known)

    async def _open_controller(self) -> None:
        """One that is killed while it starts is started again by Ray."""
        while True:
            try:
                await await_ref(self._controller.open.remote())
                return
            except ActorUnavailableError:
                await asyncio.sleep(_POLL_SECONDS)

    async def _add_host(self, node: Node, hosts_on_node: int) -> str:
        """Start a host; one that is killed while it starts is no worse than one that is killed later."""
        for _ in range(_HOST_STARTS - 1):
            try:
                return await self._try_host(node, hosts_on_node)
            except RayActorError as error:
                self._on_note(f"a host died while it started ({_cause(error)}); once more")
        try:
            return await self._try_host(node, hosts_on_node)
        except RayActorError as error:
            raise RunFailed(f"a host could not be started: {_cause(error)}") from None

    async def _try_host(self, node: Node, hosts_on_node: int) -> str:
        workload = self._workload
        name = f"host{self._host_number}"
        self._host_number += 1
        section = workload.engine
        config = HostConfig(
            run=self._run_dir.name,
            name=name,
            directory=self._run_dir,
            started_at=self._started_at,
            zero_at=self._zero_at,
            pools=self._pools,
            request_seconds=section.request_seconds if isinstance(section, ServerEngine) else 3600.0,
            retries=section.retries if isinstance(section, ServerEngine) else 4,
            tools=workload.tools,
            format=workload.agent.format,
            system=self._system,
            sampling=workload.model.sampling,
            limits=workload.agent.limits,
            attempts=workload.agent.attempts,
            context_tokens=self._context_tokens,
            seed=workload.seed,
            rules=make_rules(workload.control),
            kv_budget_tokens=workload.control.extensions.kv_budget_tokens,
            deadline_seconds=workload.control.extensions.deadline_seconds,
            hosts_on_node=hosts_on_node,
            life=self._life,
            priorities=isinstance(section, SglangEngine) and section.priorities,
            sessions=isinstance(section, SglangEngine | SimulatedEngine) and section.sessions,
        )
        host = self._cluster.actor(AgentHost, node).remote(config, self._controller, self._recorders.of(node))
        try:
            await host.open.remote()
        except RayTaskError as error:
            raise RunFailed(f"{name} could not start: {_cause(error)}") from None
        self._hosts[name] = host
        if self._signal is not None:
            host.drain.remote()
        return name

    def _assign(self, host: str, agents: list[AgentSpec]) -> None:
        task = asyncio.ensure_future(await_ref(self._hosts[host].run.remote(agents)))
        self._work[task] = (host, agents)

    async def _work_off(self) -> None:
        """Until every host has brought its agents to their ends, replacing hosts that die."""
        stop = asyncio.create_task(self._enough.wait())
        poll = asyncio.create_task(self._poll())
        replacements = 0
        try:
            while self._work and not self._enough.is_set():
                done, _ = await asyncio.wait([*self._work, stop, poll], return_when=asyncio.FIRST_COMPLETED)
                for task in done & self._work.keys():
                    host, agents = self._work.pop(task)
                    error = task.exception()
                    if error is None:
                        continue
                    if not isinstance(error, RayActorError):
                        raise RunFailed(f"{host} failed: {_cause(error)}")
                    replacements += 1
                    if replacements > _HOST_REPLACEMENTS:
                        raise RunFailed(f"{host} died, the {replacements}th host to die; the run does not go on")
                    await self._replace(host, agents)
                if poll in done:
                    poll.result()
        finally:
            stop.cancel()
            poll.cancel()

    async def _replace(self, host: str, agents: list[AgentSpec]) -> None:
        """Give the places of a dead host's agents back, and let its unfinished agents go on elsewhere."""
        self._hosts.pop(host)
        await answer(self._controller.lost.remote(host))  # one that restarts does not know that host anyway
        await self._recorders.settle(host, self._enough)
        run = Run(self._run_dir)
        left = going_on(agents, read_past(run), self._workload.agent.attempts)
        self._accounts[host] = account_of(run, agents, left)
        self._on_note(f"{host} died; {len(left)} of its {len(agents)} agents go on from their last turns on another")
        if left and self._signal is None:
            nodes = self._recorders.nodes()
            if not nodes:
                raise RunFailed("no Ray node of the run is left")
            name = await self._add_host(nodes[self._host_number % len(nodes)], 1)
            self._assign(name, left)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            await self._look()

    async def _look(self) -> None:
        """Take a snapshot. Parts that do not answer in time, since they die or restart, count as they were last."""
        asked = {name: host.status.remote() for name, host in self._hosts.items()}
        told, waited_seconds = await answers({_CONTROLLER: self._controller.status.remote(), **asked})
        self._end_hung({name: account is not None for name, account in told.items()}, waited_seconds)
        control = told.pop(_CONTROLLER) or dict(self._snapshot.control)
        # One that has died meanwhile has its account from the tables by now.
        self._accounts |= {name: told[name] for name in self._hosts if told.get(name) is not None}
        self._snapshot = join(self._elapsed(), self._total, control, self._accounts.values())
        self._on_snapshot(self._snapshot)
        for account in self._accounts.values():
            if account["fatal"]:
                raise RunFailed(account["fatal"])
        self._give_up_if_stuck()
        if self._engine is None:
            return
        for note in [*await self._recorders.news(), *await self._engine.news.read()]:
            self._on_note(note)
        if not await self._engine.alive():
            raise RunFailed(f"the engine that was launched has ended; see {self._run_dir / 'engine'}")

    def _end_hung(self, answered: Mapping[str, bool], waited_seconds: float) -> None:
        """End the parts that have hung: they are then as ones that have died."""
        for name in self._silence.hung(answered, waited_seconds):
            if name == _CONTROLLER:
                ray.kill(self._controller, no_restart=False)
            elif name in self._hosts:
                ray.kill(self._hosts[name])
                if all(name != host for host, _ in self._work.values()):  # its agents have ended
                    del self._hosts[name]
                    self._controller.lost.remote(name)
            self._on_note(f"{name} does not answer any more and is ended")

    def _give_up_if_stuck(self) -> None:
        """While the run goes on, it waits for space or for the engine; once it is being stopped, not for long."""
        if self._signal is None or self._snapshot.stuck is None:
            self._stuck_since = time.monotonic()
        elif time.monotonic() - self._stuck_since > _STUCK_SECONDS:
            self._on_note(f"stopping at once: {self._snapshot.stuck}")
            self._stop_at_once()

    def _on_signal(self, number: int) -> None:
        if self._signal is None:
            self._signal = number
            grace = f"turns have {_GRACE_SECONDS:g} s to end and are saved"
            self._on_note(f"stopping: {grace}; once more to stop at once")
            asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._enough.set)
            for host in self._hosts.values():
                host.drain.remote()
        else:
            self._stop_at_once()

    def _stop_at_once(self) -> None:
        self._enough.set()
        self._hard_stop.set()

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """Await start-up work that the first signal cuts short: nothing is worth draining yet. Raises _Stopped."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait([task], timeout=0.2)
            if self._signal is not None and not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise _Stopped
        return task.result()

    async def _stop(self) -> None:
        """Bring everything down, in the order in which it feeds the next; each part gets its time and no more."""
        for work in self._work:
            work.cancel()
        if self._controller is not None:
            await self._within(10, self._controller.close.remote())
        hosts = list(self._hosts.values())
        await asyncio.gather(*(self._within(_CLOSE_SECONDS, host.close.remote()) for host in hosts))
        await self._recorders.close()  # not cut short by a second signal
        engines = self._engine.actors if self._engine is not None else ()
        await asyncio.gather(*(self._within(60, engine.stop.remote()) for engine in engines))
        for engine in engines:
            ray.kill(engine)
        for actor in (*hosts, self._controller):
            if actor is not None:
                ray.kill(actor)

    async def _finish(self) -> tuple[str, str | None]:
        """Once all agents have ended, store what is left in the journal and merge the parts.

        How the run has ended, and why it could not be finished though nobody stopped it.
        """
        stopped = "failed" if self._signal is None else "interrupted"
        try:
            ended = set(Run(self._run_dir).agents_final()["agent_id"].to_pylist())
            if any(agent.agent_id not in ended for agent in self._agents):
                return stopped, None
            unmerged = await asyncio.to_thread(finish, self._run_dir, self._hard_stop.is_set)
        except TraceError as error:
            return stopped, str(error) if self._signal is None else None
        if unmerged is not None:
            self._on_note(f"the parts are not merged: {unmerged}; the tables are whole all the same")
        return "finished", None

    async def _within(self, seconds: float, ref: Any) -> None:
        """Wait for an actor's answer, so long at most, and not at all once a second signal has come."""
        answered, stop = asyncio.create_task(answer(ref, seconds)), asyncio.create_task(self._hard_stop.wait())
        await asyncio.wait([answered, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    def _elapsed(self) -> float:
        return time.monotonic() - self._zero_seconds

    def _facts(self) -> dict[str, Any]:
        """What the manifest says of where and with what the run was made."""
        packages = ("concur-batch", "ray", "pyarrow", "tokenizers", "aiohttp")
        return {
            "run": self._run_dir.name,
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started_at)),
            "agents": self._total,
            "versions": {name: importlib.metadata.version(name) for name in packages},
            "python": platform.python_version(),
            "choices": CHOICES,
            "tools_restored_from": "the trajectory"
            if self._workload.replay
            else _RESTORED_FROM[self._workload.tools.kind],
            "simulated": isinstance(self._workload.engine, SimulatedEngine),
        }


def _cause(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    return (str(cause).strip() or type(cause).__name__).splitlines()[-1]
