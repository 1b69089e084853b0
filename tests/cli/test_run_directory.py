"""Who may write where: a run directory is begun once, resumed any number of times, and held by one process."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from roll.journal.events import RunStarted
from roll.journal.store import Reader
from roll.tracking.directory import RunDirectory

pytestmark = pytest.mark.slow


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def starts(run: Path) -> list[int | None]:
    """Where each process that worked on the run began."""
    with closing(Reader(run / "journal.db")) as reader:
        return [entry.event.resumed_from for entry in reader.events(RunStarted)]


def test_resuming_a_directory_without_a_run_is_refused(roll: Callable, folder: Path) -> None:
    (folder / "notes").mkdir()
    assert roll("resume", "nowhere").fault(2).startswith("nowhere: no such directory")
    assert roll("resume", "notes").fault(2).startswith("notes: not the directory of a run (no config.yaml)")
    assert list((folder / "notes").iterdir()) == []


def test_resuming_a_run_without_a_checkpoint_says_how_to_start_again(roll: Callable, made: Path) -> None:
    for path in (made / "checkpoints").iterdir():
        path.rename(made.parents[1] / path.name)
    assert roll("resume", "runs/tiny", "steps=5").fault(2) == (
        "runs/tiny: no checkpoint to resume from; start again with `roll train ... --overwrite`"
    )


def test_resuming_a_finished_run_says_so_and_changes_nothing(roll: Callable, made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file() and path.name != ".lock"}
    outcome = roll("resume", "runs/tiny")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "runs/tiny: all 4 steps are done already; to train more, add steps=\n"
    after = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file() and path.name != ".lock"}
    assert {path.name for path in set(after) ^ set(before)} <= {"journal.db-shm", "journal.db-wal"}
    assert all(after[path] == before[path] for path in before if path in after)


def test_a_finished_run_continues_with_more_steps(roll: Callable, made: Path) -> None:
    outcome = roll("resume", "runs/tiny", "steps=6")
    assert outcome.code == 0, outcome
    assert checkpoints(made) == ["step-3", "step-5", "step-6"]  # two newest, and the best
    assert starts(made) == [None, 4]


def test_a_run_that_died_before_its_export_exports_when_resumed(roll: Callable, folder: Path) -> None:
    (folder / "export_beside.py").write_text(
        "import os\nfrom pathlib import Path\n\n"
        "def score(task, reply):\n    Path(f'runs/tiny/.tmp-model-{os.getpid()}').write_text('')\n    return 0.0\n"
    )
    outcome = roll("train", "run.yaml", "tasks.0.reward='export_beside:score'", "validation.tasks=[]")
    assert outcome.fault(3).startswith("runs/tiny/model: could not be written")
    assert roll("resume", "runs/tiny", "tasks.0.reward=exact").code == 0
    assert (folder / "runs" / "tiny" / "model" / "model.safetensors").is_file()


def test_an_existing_run_is_not_restarted_without_overwrite(roll: Callable, made: Path) -> None:
    assert roll("train", "run.yaml").fault(2) == (
        "runs/tiny: exists already; continue with `roll resume runs/tiny`, or add --overwrite, or change name="
    )
    assert checkpoints(made) == ["step-3", "step-4"]


def test_an_existing_sft_run_is_overwritten_or_kept_and_never_resumed(roll: Callable, folder: Path) -> None:
    (folder / "runs" / "tiny-sft").mkdir(parents=True)
    (folder / "runs" / "tiny-sft" / "config.yaml").write_text((folder / "run.yaml").read_text())
    assert roll("sft", "run.yaml").fault(2) == "runs/tiny-sft: exists already; add --overwrite, or change name="
    assert roll("resume", "runs/tiny-sft").fault(2) == (
        "runs/tiny-sft: an SFT run, which has no checkpoints; repeat it with `roll sft ... --overwrite`"
    )


def test_overwriting_removes_everything_of_the_old_run(roll: Callable, made: Path) -> None:
    assert roll("train", "run.yaml", "--overwrite", "steps=1", "validation.at_start=false").code == 0
    assert checkpoints(made) == ["step-1"] and starts(made) == [None]
    assert len((made / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_run_may_overwrite_the_one_whose_model_it_starts_from(roll: Callable, made: Path) -> None:
    outcome = roll("train", "run.yaml", "model={path: runs/tiny/model}", "--overwrite", "steps=1")
    assert outcome.code == 0, outcome


def test_overwriting_refuses_a_directory_without_a_run(roll: Callable, folder: Path) -> None:
    (folder / "runs" / "tiny").mkdir(parents=True)
    (folder / "runs" / "tiny" / "thesis.txt").write_text("years of work")
    for arguments in (["train", "run.yaml"], ["train", "run.yaml", "--overwrite"]):
        assert roll(*arguments).fault(2) == (
            "runs/tiny: exists already and is not the directory of a run; change name="
        )
    assert (folder / "runs" / "tiny" / "thesis.txt").read_text() == "years of work"


def test_a_run_in_use_by_another_process_is_not_touched(roll: Callable, made: Path) -> None:
    with closing(RunDirectory.open(made)):
        for arguments in (["resume", "runs/tiny", "steps=6"], ["train", "run.yaml", "--overwrite"]):
            assert roll(*arguments).fault(2) == (
                "runs/tiny: another process is using this run; wait for it, or change name="
            )
    assert checkpoints(made) == ["step-3", "step-4"]
    assert roll("resume", "runs/tiny", "steps=5").code == 0


TRAIN = ("train", "run.yaml", "model={path: runs/tiny-sft/model}", "--resume")
"""Starts or continues the run of the fixture `made`."""


def test_train_resume_starts_a_run_and_then_continues_it_without_losing_a_checkpoint(
    roll: Callable, folder: Path
) -> None:
    run, arguments = folder / "runs" / "tiny", ("train", "run.yaml", "validation.tasks=[]", "checkpoint.keep=9")
    for steps in (2, 3):
        outcome = roll(*arguments, f"steps={steps}", "--resume")
        assert outcome.code == 0, outcome
    assert checkpoints(run) == ["step-1", "step-2", "step-3"] and starts(run) == [None, 2]


def test_train_resume_of_a_finished_run_says_so_and_changes_nothing(roll: Callable, made: Path) -> None:
    for path in (made / "checkpoints").iterdir():  # the model alone is reason enough not to start again
        path.rename(made.parents[1] / path.name)
    outcome = roll(*TRAIN)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "runs/tiny: all 4 steps are done already; to train more, add steps=\n"
    assert (made / "model" / "model.safetensors").is_file() and starts(made) == [None]


def test_train_resume_starts_again_where_no_checkpoint_was_written(roll: Callable, folder: Path) -> None:
    (folder / "failing_beside.py").write_text("def score(task, reply):\n    raise ValueError('down')\n")
    arguments = ("train", "run.yaml", "validation.tasks=[]", "steps=1", "--resume")
    assert roll(*arguments, "tasks.0.reward='failing_beside:score'").code == 3
    assert starts(folder / "runs" / "tiny") == [None] and checkpoints(folder / "runs" / "tiny") == []
    outcome = roll(*arguments)
    assert outcome.code == 0, outcome
    assert outcome.out.startswith("runs/tiny: has no checkpoint yet; starts again from step 0\n")
    assert checkpoints(folder / "runs" / "tiny") == ["step-1"] and starts(folder / "runs" / "tiny") == [None]


def test_train_resume_finds_a_checkpoint_whose_rewrite_was_cut_off(roll: Callable, made: Path) -> None:
    (made / "checkpoints" / "step-3").rename(made.parents[1] / "step-3")
    (made / "checkpoints" / "step-4").rename(made / "checkpoints" / ".old-step-4-17")
    (made / "model").rename(made.parents[1] / "model")
    assert roll(*TRAIN, "steps=5").code == 0
    assert checkpoints(made) == ["step-4", "step-5"] and starts(made) == [None, 4]


def test_train_resume_refuses_a_run_of_another_configuration(roll: Callable, made: Path) -> None:
    file = made.parents[1] / "run.yaml"
    file.write_text(file.read_text().replace("\nsteps: 4", "\nseed: 1\nsteps: 9"))
    assert roll(*TRAIN).fault(2) == (
        "runs/tiny: was started with other values of seed, steps; change the file back, "
        "give the new values on the command line (key=value), or change name="
    )
    assert checkpoints(made) == ["step-3", "step-4"]
    assert roll(*TRAIN, "seed=0", "steps=5").code == 0
    assert starts(made) == [None, 4]


def test_train_resume_refuses_overwrite_a_run_in_use_and_a_directory_without_a_run(
    roll: Callable, made: Path, folder: Path
) -> None:
    assert roll(*TRAIN, "--overwrite").fault(2) == (
        "roll train: --overwrite deletes the run that --resume continues; leave one of them out"
    )
    with closing(RunDirectory.open(made)):
        assert roll(*TRAIN).fault(2).startswith("runs/tiny: another process is using this run")
    assert checkpoints(made) == ["step-3", "step-4"]
    (folder / "runs" / "notes").mkdir()
    (folder / "runs" / "notes" / "thesis.txt").write_text("years of work")
    assert roll(*TRAIN, "name=notes").fault(2).startswith("runs/notes: exists already and is not the directory of a")
    assert (folder / "runs" / "notes" / "thesis.txt").read_text() == "years of work"


def test_a_run_whose_workers_were_killed_before_it_began_can_be_started(roll: Callable, folder: Path) -> None:
    (folder / "runs" / "tiny" / "logs").mkdir(parents=True)
    (folder / "runs" / "tiny" / "weights-actor_train-9c29e388").touch()  # the rendezvous of a sharded trainer
    assert roll("train", "run.yaml", "validation.tasks=[]", "steps=1", "--resume").code == 0
    assert checkpoints(folder / "runs" / "tiny") == ["step-1"]
