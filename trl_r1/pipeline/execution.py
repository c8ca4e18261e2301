"""Runs one stage: in this process, or in processes that `accelerate launch` starts.

A job is all a stage needs, so that a launched process reads no recipe again. It travels in the
environment, never in a file, since it may hold secrets.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any

import trl
import yaml

from trl_r1.hub.checkpoints import checkpoint_repo
from trl_r1.hub.names import repo_name
from trl_r1.pipeline.configs import ResolvedStage, build_configs, has_accelerator
from trl_r1.pipeline.ledger import write_text
from trl_r1.pipeline.lock import RunLock
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.stages import RewardSpec, StageContext, StageResult, load_stage
from trl_r1.trust.secrets import clean, remember_in

OnProgress = Callable[[int, int, Mapping[str, float]], None]
_PROGRESS_MARK = "trl_r1 progress: "
_JOB_VARIABLE = "TRL_R1_JOB"
_RESULT_FILE = ".result.json"
_WORKER_LOCK = ".worker.lock"


@dataclass(frozen=True)
class Launch:
    """How to start a stage's processes.

    Attributes:
        config: an accelerate config file.
        processes: how many it says.
        on_cpu: several processes on CPUs; torchrun starts those, since `accelerate launch` would
            quietly start one.
        command: put before the command that starts them; it may start it on several machines.
    """

    config: Path
    processes: int
    on_cpu: bool = False
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A stage to run.

    Attributes:
        stage: its type.
        name: its name.
        output_dir: its folder, absolute.
        values, rewards: resolved.
        seed: its seed.
        threads: CPU threads; None leaves them alone.
    """

    stage: str
    name: str
    output_dir: Path
    values: Mapping[str, Any]
    rewards: tuple[RewardSpec, ...]
    seed: int
    threads: int | None


def make_job(resolved: ResolvedStage, output_dir: Path, seed: int, threads: int | None) -> Job:
    """The job of a resolved stage."""
    recipe = resolved.recipe
    return Job(
        recipe.stage, recipe.name, output_dir, resolved.values, resolved.rewards, seed, threads
    )


def find_launch(name: str, num_processes: int | None = None, launcher: str | None = None) -> Launch:
    """The accelerate config of `--accelerate_config`, and how many processes it starts.

    Args:
        name: a file, or the name of a preset: of `recipes/accelerate`, or one that TRL ships.
        num_processes: over the config's; where neither says, one a card.
        launcher: command to put before that of `accelerate launch`, such as `srun ...`.

    Raises:
        PipelineError: neither, or no accelerate config.
    """
    path = Path(name)
    if not path.is_file():
        presets = _presets()
        if name not in presets:
            raise PipelineError(
                f"--accelerate_config {name}: no such file, and no preset: "
                f"{', '.join(sorted(presets))}"
            )
        path = presets[name]
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        processes = num_processes or int(settings.get("num_processes") or _num_cards())
        is_plain = settings.get("distributed_type", "NO") in ("NO", "MULTI_CPU", "MULTI_GPU")
        on_cpu = bool(settings.get("use_cpu")) or (is_plain and not has_accelerator())
        on_cpu = on_cpu and int(settings.get("num_machines", 1)) == 1 and not launcher
    except (yaml.YAMLError, AttributeError, ValueError) as error:
        raise PipelineError(f"--accelerate_config {path}: not an accelerate config") from error
    command = tuple(shlex.split(launcher)) if launcher else ()
    return Launch(path.resolve(), processes, on_cpu, command)


def _presets() -> dict[str, Path]:
    """The configs that can be named: TRL's, and those of this package over them."""
    own = Path(str(resources.files("trl_r1.recipes") / "accelerate"))
    folders = (Path(trl.__file__).parent / "accelerate_configs", own)
    return {path.stem: path for folder in folders for path in folder.glob("*.yaml")}


def _num_cards() -> int:
    import torch

    return max(1, torch.cuda.device_count())


def run_here(
    job: Job, on_progress: OnProgress, wrap_sampler: Callable[[Any], Any] | None = None
) -> StageResult:
    """Run a job in this process.

    Args:
        job: the job.
        on_progress, wrap_sampler: as in `StageContext`.
    """
    set_up(job)
    try:
        module = load_stage(job.stage)
        configs = build_configs(module.SPEC, job.values, job.output_dir, job.seed)
        wrapped = {} if wrap_sampler is None else {"wrap_sampler": wrap_sampler}
        repo = checkpoint_repo(job.values, repo_name(f"{job.output_dir.parent.name}-{job.name}"))
        context = StageContext(
            job.name, job.output_dir, configs, job.rewards, on_progress, repo, **wrapped
        )
        result: StageResult = module.run(context)
        return result
    finally:
        clean_up()


def set_up(job: Job) -> None:
    """Threads and seeds, so that a stage gives the same alone and after others."""
    import torch
    from transformers import set_seed

    if job.threads is not None:
        torch.set_num_threads(job.threads)
    set_seed(job.seed)


def clean_up() -> None:
    """Free what a stage held, and let the next one choose its own device and precision."""
    import torch
    from accelerate.state import AcceleratorState, GradientState

    # Resets PartialState too. Under torchrun the process group stays, and so must the state that
    # made it.
    if "LOCAL_RANK" not in os.environ:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_launched(job: Job, launch: Launch, log: IO[str], on_progress: OnProgress) -> StageResult:
    """Run a job in processes of its own.

    Args:
        job: the job.
        launch: how to start them.
        log: gets what they print.
        on_progress: as in `StageContext`.

    Raises:
        PipelineError: they ended without a result; the log says why.
    """
    result_file = job.output_dir / _RESULT_FILE
    # A worker whose runner was killed notices within seconds; until then it may still write.
    with RunLock(job.output_dir / _WORKER_LOCK, wait_seconds=60):
        result_file.unlink(missing_ok=True)
    start = [
        *launch.command,
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", launch.config),
        *("--num_processes", launch.processes),
    ]
    if launch.on_cpu:
        count = str(launch.processes)
        start = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            count,
        ]
    command = [str(part) for part in (*start, "-m", "trl_r1", "run-stage")]
    document = {**asdict(job), "output_dir": str(job.output_dir)}
    document.update(processes=launch.processes, runner=os.getpid(), on_cpu=launch.on_cpu)
    document["host"] = socket.gethostname()
    environment = {**os.environ, _JOB_VARIABLE: json.dumps(document)}
    if launch.on_cpu:
        environment["ACCELERATE_USE_CPU"] = "true"
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    )
    said = ""
    try:
        assert process.stdout is not None, "a pipe was asked for"
        for line in process.stdout:
            if line.startswith(_PROGRESS_MARK):
                on_progress(*json.loads(line.removeprefix(_PROGRESS_MARK)))
            else:
                log.write(line)
                said = line.partition("trl-r1: ")[2].strip() or said
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if not result_file.exists():
        raise PipelineError(said or f"its processes ended with status {status} and no result")
    result = json.loads(result_file.read_text(encoding="utf-8"))
    for file in (result_file, job.output_dir / _WORKER_LOCK):
        file.unlink(missing_ok=True)
    return StageResult(**result)


def run_worker() -> None:
    """A launched process: runs the job it was given; the main one writes the result.

    Raises:
        PipelineError: not as many processes as the accelerate config says.
    """
    from accelerate import PartialState

    document = json.loads(os.environ.pop(_JOB_VARIABLE))
    remember_in(document)
    processes, runner = document.pop("processes"), document.pop("runner")
    is_beside_runner = document.pop("host") == socket.gethostname()
    # Without being told, several processes on CPUs would each take themselves for the only one.
    state = PartialState(cpu=True) if document.pop("on_cpu") else PartialState()
    if is_beside_runner:
        threading.Thread(target=_follow, args=(runner,), daemon=True).start()
    rewards = tuple(RewardSpec(**reward) for reward in document.pop("rewards"))
    job = Job(**{**document, "output_dir": Path(document["output_dir"])}, rewards=rewards)
    if state.num_processes != processes:
        raise PipelineError(
            f"the accelerate config asks for {processes} processes, but {state.num_processes} run"
        )
    if not state.is_main_process:
        run_here(job, lambda step, max_steps, metrics: None)
        return
    with RunLock(job.output_dir / _WORKER_LOCK, wait_seconds=60):
        result = run_here(job, _report)
        write_text(job.output_dir / _RESULT_FILE, json.dumps(clean(asdict(result)), default=str))


def _report(step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
    numbers = {k: v for k, v in metrics.items() if isinstance(v, (int, float))}
    sys.stdout.write(f"\n{_PROGRESS_MARK}{json.dumps([step, max_steps, numbers])}\n")
    sys.stdout.flush()


def _follow(runner: int) -> None:
    """End this process when its runner is gone: the next run would write to the same folder."""
    while True:
        try:
            os.kill(runner, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(1.0)
