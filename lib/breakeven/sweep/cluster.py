"""Restarts of a sweep side by side, through Ray: one launch at a time per GPU group, or per slice of a node's cores.

Optional (``pip install ray``; RAY_ADDRESS joins a cluster, without it Ray runs on this machine). A worker takes whole
restarts, so that what is compared was measured on the same devices; the results stand where a sweep without workers
would have put them.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from breakeven import artifacts, machine
from breakeven.config import SweepSettings
from breakeven.errors import UserError
from breakeven.launch.design import Launch
from breakeven.launch.serving import OVERLAY, Serving
from breakeven.server.flags import ranks_here
from breakeven.sweep.load import Workload
from breakeven.sweep.measuring import MOST_ATTEMPTS, Measurement, lost_connection, reference_cell
from breakeven.sweep.store import Store

Say = Callable[[str], None]


class Worker:
    """Measures launches on its devices; runs in a process of its own, which takes its servers along when it dies.

    ``overlay``: the files of the run's overlay by their path in it; a worker may be on another machine.
    """

    def __init__(
        self, settings: Mapping[str, Any], cores: Sequence[int], folders: str, overlay: Mapping[str, bytes]
    ) -> None:
        if cores:
            os.sched_setaffinity(0, cores)
        self._run_dir = Path(tempfile.mkdtemp(prefix=folders))
        self._settings = SweepSettings.checked(settings)
        self._serving = Serving.prepare(self._settings, self._run_dir, print)
        for name, content in overlay.items():
            artifacts.write_bytes(self._run_dir / OVERLAY / name, content)
        self._load = Workload.chosen(self._settings, self._serving.encode)
        self._devices = os.environ.get("CUDA_VISIBLE_DEVICES") or f"cores {','.join(map(str, cores))}"

    def pid(self) -> int:
        return os.getpid()

    def measure(self, launch: Launch, attempt: str, known: _Known) -> dict[str, Any]:
        """Rows and samples of one launch, and the files that it left, by their path in the run folder."""
        known.attempt = attempt
        rows = Measurement(self._settings, self._serving, self._load, known, print).run(launch)
        where = f"{socket.gethostname()}: {self._devices}"
        files = {name: each for name, each in _contents(self._run_dir).items() if not name.startswith(f"{OVERLAY}/")}
        for name in files:
            (self._run_dir / name).unlink()
        return {"rows": [{**row, "worker": where} for row in rows], "samples": known.collected, "files": files}


def _contents(folder: Path) -> dict[str, bytes]:
    """What a folder holds, by path in it; of no folder nothing."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class _Known:
    """What a measurement asks its store, for a worker that has none: the outputs to compare with travel along."""

    def __init__(self, store: Store, launch: Launch, load: Workload) -> None:
        references = {reference_cell(launch.arm, store, batch.condition) for batch in load.batches}
        self.rows = [{key: row[key] for key in ("cell", "drafter", "condition")} for row in store.rows]
        self._outputs = {cell: store.outputs(cell) for cell in references if cell}
        self.collected: list[dict[str, Any]] = []
        self.attempt = ""

    def new_attempt(self, _launch: Launch) -> str:
        return self.attempt

    def outputs(self, cell: str) -> dict[str, list[int]]:
        return self._outputs.get(cell, {})

    def add_sample(self, sample: Mapping[str, Any]) -> None:
        self.collected.append(dict(sample))


def measure_all(
    settings: SweepSettings, launches: Sequence[Launch], load: Workload, store: Store, run_dir: Path, say: Say
) -> None:
    """Measure what the store does not hold, with ``settings.workers`` workers.

    A worker that dies is replaced and its launch repeated, and so is a launch that was lost with the connection to its
    host; the third time ends the sweep with a RuntimeError, everything else kept. Raises UserError without Ray.
    """
    ray = _ray()
    _start(ray)
    try:
        _Crew(ray, settings, launches, load, store, run_dir, say).work()
    finally:
        ray.shutdown()
        for folder in Path(tempfile.gettempdir()).glob(f"{_folders()}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _folders() -> str:
    """How the names of this process's workers' folders begin: one that is killed can't remove its own."""
    return f"breakeven-worker-of-{os.getpid()}-"


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("workers: Ray is not installed; pip install ray, or set workers: 0") from None
    return ray


def _start(ray: Any) -> None:
    """On a busy machine Ray's own processes can miss their deadlines; once more is worth a try."""
    options = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS"), **options)
    except Exception:  # Ray raises plain Exception when its processes do not come up
        ray.shutdown()
        ray.init(address=os.environ.get("RAY_ADDRESS"), **options)


class _Crew:
    """The workers, what each is doing, and what is left to do."""

    def __init__(
        self,
        ray: Any,
        settings: SweepSettings,
        launches: Sequence[Launch],
        load: Workload,
        store: Store,
        run_dir: Path,
        say: Say,
    ) -> None:
        self._ray, self._settings, self._load = ray, settings, load
        self._store, self._run_dir, self._say = store, run_dir, say
        flags = [[*settings.server_flags, *launch.arm.variant.flags] for launch in launches]
        self._gpus = max(ranks_here(settings.tp, each) for each in flags) if machine.gpus() else 0
        self._places = _places(ray, settings.workers, self._gpus)
        restarts = list(dict.fromkeys(launch.restart for launch in launches))
        self._queues: list[deque[Launch]] = [deque() for _ in self._places]
        for launch in launches:
            if not store.holds(launch):
                self._queues[restarts.index(launch.restart) % len(self._places)].append(launch)
        self._attempts: dict[str, int] = {}

    def work(self) -> None:
        workers = [self._hire(place) for place in self._places]
        busy: dict[Any, tuple[int, Launch]] = {}
        for number in range(len(workers)):
            self._next(number, workers, busy)
        while busy:
            (done,), _ = self._ray.wait(list(busy), num_returns=1)
            number, launch = busy.pop(done)
            try:
                found = self._ray.get(done)
            except self._ray.exceptions.RayActorError as error:
                self._repeat(number, launch, f"worker {number + 1} died", error)
                workers[number] = self._hire(self._places[number])
            else:
                if lost := lost_connection(found["rows"]):
                    self._repeat(number, launch, lost)
                else:
                    self._keep(launch, found)
            self._next(number, workers, busy)

    def _hire(self, place: Mapping[str, Any]) -> Any:
        options = {"num_gpus": self._gpus, "num_cpus": 0, "scheduling_strategy": place["strategy"]}
        values = self._settings.model_dump() | {"workers": 0}
        cores = [] if self._gpus else place["cores"]
        overlay = _contents(self._run_dir / OVERLAY)
        return self._ray.remote(Worker).options(**options).remote(values, cores, _folders(), overlay)

    def _next(self, number: int, workers: Sequence[Any], busy: dict[Any, tuple[int, Launch]]) -> None:
        if not self._queues[number]:
            return
        launch = self._queues[number].popleft()
        left = sum(map(len, self._queues)) + 1
        self._say(f"worker {number + 1}: {launch.key}, {left} launches to start{self._store.time_left(left)}")
        known = _Known(self._store, launch, self._load)
        task = workers[number].measure.remote(launch, self._store.new_attempt(launch), known)
        busy[task] = (number, launch)

    def _keep(self, launch: Launch, found: Mapping[str, Any]) -> None:
        for name, content in found["files"].items():
            artifacts.write_bytes(self._run_dir / name, content)
        for sample in found["samples"]:
            self._store.add_sample(sample)
        self._store.add(launch, found["rows"])

    def _repeat(self, number: int, launch: Launch, why: str, error: Exception | None = None) -> None:
        self._attempts[launch.key] = self._attempts.get(launch.key, 0) + 1
        if self._attempts[launch.key] == MOST_ATTEMPTS:
            raise RuntimeError(f"{launch.key} was lost {MOST_ATTEMPTS} times; the last: {why}") from error
        self._say(f"{why}; {launch.key} is measured again")
        self._queues[number].appendleft(launch)


def _places(ray: Any, workers: int, gpus: int) -> list[dict[str, Any]]:
    """Where each worker runs: its node, and its slice of the node's cores (which only matters without GPUs).

    ``gpus`` are those that each worker's server takes. Raises UserError where a node has too few of them, for which Ray
    would wait for ever, or of cores.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = []
    for number in range(workers):
        node = nodes[number % len(nodes)]
        share, of = number // len(nodes), -(-workers // len(nodes))
        here = node["NodeID"] == ray.get_runtime_context().get_node_id()
        cores = sorted(os.sched_getaffinity(0)) if here else list(range(int(node["Resources"].get("CPU", 1))))
        if len(cores) < of:
            raise UserError(f"workers is {workers}: {of} on a node with {len(cores)} cores; give fewer workers")
        if of * gpus > (there := int(node["Resources"].get("GPU", 0))):
            raise UserError(
                f"workers is {workers}: {of} on a node whose servers take {gpus} GPUs each, and Ray has {there}; "
                "give fewer workers, or start Ray with the node's GPUs (ray start --num-gpus)"
            )
        size = len(cores) // of
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        places.append({"strategy": strategy, "cores": cores[share * size : (share + 1) * size]})
    return places
