"""Bugs in the step of distillation."""

from dataclasses import replace

import torch

from roll.algorithms.distillation import Distillation, distillation_rows
from roll.conformance.divergences import DistillationCase, package_step
from roll.data.collate import supervised
from roll.types import Spec

Outcome = tuple[torch.Tensor, torch.Tensor]


def shifted_labels(case: DistillationCase, objective: Distillation) -> Outcome:
    """Logits at a token are compared with those before it."""
    return package_step(replace(case, teacher=case.teacher.roll(-1, 0)), objective)


def prompt_tokens_in_the_loss(case: DistillationCase, objective: Distillation) -> Outcome:
    """All tokens but the first of each row are trained."""
    rows = torch.split(case.batch.ids, list(case.batch.lengths))
    batch = supervised([[row[:1].tolist(), row[1:].tolist()] for row in rows])
    return package_step(replace(case, batch=batch), objective)


def swapped_direction(case: DistillationCase, objective: Distillation) -> Outcome:
    """The reverse divergence for the forward one."""
    name = {"forward_kl": "reverse_kl", "reverse_kl": "forward_kl"}[objective.divergence.name]
    return package_step(case, replace(objective, divergence=Spec(name)))


def teacher_not_frozen(case: DistillationCase, objective: Distillation) -> Outcome:
    """The teacher is the student after half of the way to it."""
    return package_step(replace(case, teacher=(case.teacher + case.student) / 2), objective)


def gradient_through_the_teacher(case: DistillationCase, objective: Distillation) -> Outcome:
    """The value is right, but the gradient is that of a teacher that moves with the student."""
    loss, gradient = package_step(case, objective)
    _, other = package_step(replace(case, teacher=case.student, student=case.teacher), objective)
    return loss, gradient + 0.5 * other


def without_the_square(case: DistillationCase, objective: Distillation) -> Outcome:
    """The divergence is not multiplied by the square of the temperature."""
    loss, gradient = package_step(case, objective)
    return loss / objective.temperature**2, gradient / objective.temperature**2


def temperature_of_the_student_alone(case: DistillationCase, objective: Distillation) -> Outcome:
    """The teacher's logits are not divided by the temperature."""
    return package_step(replace(case, teacher=case.teacher * objective.temperature), objective)


def all_others_left_out(case: DistillationCase, objective: Distillation) -> Outcome:
    """The loss reads the most likely tokens alone, as if they were the whole vocabulary."""
    assert case.top_k is not None and case.batch.weights is not None
    at = case.batch.trained.nonzero().squeeze(-1)
    ids, student = case.teacher[at - 1].topk(case.top_k, -1).indices, case.student.clone().requires_grad_()
    few = student[at - 1].gather(-1, ids), case.teacher[at - 1].gather(-1, ids)
    rows = distillation_rows(few[0], ids[:, 0] * 0, few[1], replace(objective, vocab=case.top_k))
    loss = (rows[0] * case.batch.weights[at]).sum()
    return loss.detach(), torch.autograd.grad(loss, student)[0]


STEPS = (
    shifted_labels,
    prompt_tokens_in_the_loss,
    swapped_direction,
    teacher_not_frozen,
    gradient_through_the_teacher,
    without_the_square,
    temperature_of_the_student_alone,
    all_others_left_out,
)
OPTIONS = {"temperature": 2.0, "top_k": 4}
"""With which every one of these is wrong."""
