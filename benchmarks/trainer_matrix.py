"""Trainers over ranks: for each family of models and each way to divide it, what was tested, refused or never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FSDP = "tests/engines/fsdp"
_OPTIONAL = "tests/trainers_optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A test or a benchmark that compares ranks with one process."""

    where: str
    """`file::function` of a test, or the name of a benchmark."""
    about: str

    @property
    def text(self) -> str:
        file, _, function = self.where.rpartition("::")
        return f"{self.about}: `{file}`, `{function}`" if file else f"{self.about}: `roll bench {function}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A line that ends the run before it trains."""

    line: str
    """Part of the message."""
    overrides: tuple[str, ...] = ()
    """Of a file that is refused when it is read; empty if the model is read first."""
    test: str = ""
    """`file::function`, if the refusal needs processes."""

    @property
    def text(self) -> str:
        return f"refused: `{self.line}`"


PROOFS: Mapping[str, Proof] = {
    "A": Proof(where=f"{_FSDP}/test_trainer.py::test_the_gradient_is_that_of_one_process", about="gradient"),
    "B": Proof(where=f"{_FSDP}/test_huggingface.py::test_the_gradient_is_that_of_one_process", about="gradient"),
    "C": Proof(
        where=f"{_OPTIONAL}/test_deepspeed.py::test_the_gradient_is_that_of_one_process",
        about="gradient; with the next test, ten batches",
    ),
    "D": Proof(
        where=f"{_OPTIONAL}/test_deepspeed.py::test_ten_batches_give_the_results_of_one_process",
        about="losses, norms and logprobs of ten batches",
    ),
    "E": Proof(
        where=f"{_OPTIONAL}/test_deepspeed_huggingface.py::test_the_gradient_is_that_of_one_process", about="gradient"
    ),
    "F": Proof(where="layouts", about="gradient, recorded for 39 of 39 layouts"),
    "G": Proof(
        where=f"{_OPTIONAL}/megatron/test_layouts.py::test_the_gradient_is_that_of_one_process",
        about="gradient; also F",
    ),
    "H": Proof(
        where=f"{_OPTIONAL}/megatron/test_layouts.py::test_further_layouts_have_the_same_gradient", about="gradient"
    ),
}
REFUSALS: Mapping[str, Refusal] = {
    "r": Refusal(line="unknown key 'actor_train.parallel.pp'", overrides=("actor_train.parallel.pp=2",)),
    "s": Refusal(line="unknown key 'actor_train.parallel.ep'", overrides=("actor_train.parallel.ep=2",)),
    "t": Refusal(
        line="models of engine hf have neither tp nor cp",
        test=f"{_FSDP}/test_huggingface.py::test_tensor_parallelism_is_refused",
    ),
    "u": Refusal(line="parallel.tp (2): deepspeed divides rows only", overrides=("actor_train.parallel.tp=2",)),
    "v": Refusal(line="parallel.cp (2): deepspeed divides rows only", overrides=("actor_train.parallel.cp=2",)),
    "w": Refusal(line="parallel.ep (2): the model has no experts"),
    "x": Refusal(line="is not known to backend megatron"),
}
NOT_RUN: Mapping[str, str] = {
    "1": "not run: the native decoder computes it with the code of the families that are tested",
    "2": "not run: one family of each kind was chosen, and the code is that of `transformers`",
    "3": "not run: each of the two is tested, not both together",
    "4": "not run: stages 2 and 3 are tested",
}

FAMILIES = ("Llama 3", "Qwen2", "Qwen3", "Qwen3-MoE", "Mixtral", "DeepSeek-V3", "Gemma 2", "GPT-OSS", "Mistral")
"""By their names in `benchmarks.families`."""
MATRIX: Mapping[str, Mapping[str, str]] = {
    "fsdp2": {
        "dp 2": "1 1 A B 2 B B B 1",
        "tp 2": "1 1 A t t t t t 1",
        "cp 2": "A 1 A t t t t t 1",
        "dp 2 x tp 2": "A 1 A t t t t t 1",
        "tp 2 x cp 2": "3 3 3 t t t t t 3",
        "pp 2": "r r r r r r r r r",
        "ep 2": "s s s s s s s s s",
    },
    "deepspeed": {
        "stage 1": "C 1 D 4 4 4 4 4 1",
        "stage 2": "1 1 C E 2 E E E 1",
        "stage 3": "1 1 C E 2 E E E 1",
        "stage 2, offloaded optimizer": "1 1 C 3 3 3 3 3 1",
        "stage 3, all offloaded": "1 1 C 3 3 3 3 3 1",
        "tp 2": "u u u u u u u u u",
        "cp 2": "v v v v v v v v v",
        "pp 2": "r r r r r r r r r",
        "ep 2": "s s s s s s s s s",
    },
    "megatron": {
        "dp 2": "G F F F F F x x x",
        "tp 2": "F G F G F F x x x",
        "pp 2": "F F F F F F x x x",
        "cp 2": "F F G F F F x x x",
        "ep 2": "w w w F F G x x x",
        "tp 2 x pp 2": "F F G F F G x x x",
        "tp 2 x ep 2": "w w w G F F x x x",
        "pp 2 x ep 2": "w w w F G F x x x",
        "tp 2 x cp 2": "3 3 3 H 3 3 x x x",
        "pp 2 x cp 2": "3 3 3 3 3 H x x x",
    },
}
"""Per backend and division one mark per family: of `PROOFS`, `REFUSALS` or `NOT_RUN`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One backend with one division of one family."""

    backend: str
    division: str
    family: str
    mark: str


def cells() -> Iterator[Cell]:
    """All cells of the matrix."""
    for backend, rows in MATRIX.items():
        for division, marks in rows.items():
            for family, mark in zip(FAMILIES, marks.split(), strict=True):
                yield Cell(backend=backend, division=division, family=family, mark=mark)


def tables() -> str:
    """The tables of all backends, and what the marks mean."""
    parts: list[str] = []
    for backend, rows in MATRIX.items():
        lines = [f"| `{backend}` | {' | '.join(FAMILIES)} |", "|" + " --- |" * (len(FAMILIES) + 1)]
        lines += [f"| {division} | {' | '.join(marks.split())} |" for division, marks in rows.items()]
        parts.append("\n".join(lines))
    marks = {**{key: proof.text for key, proof in PROOFS.items()}, **{key: each.text for key, each in REFUSALS.items()}}
    marks |= NOT_RUN
    parts.append("\n".join(["| mark | |", "| --- | --- |", *(f"| {mark} | {text} |" for mark, text in marks.items())]))
    return "\n\n".join(parts) + "\n"
