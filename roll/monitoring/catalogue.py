"""Every metric of `/metrics` with its type, labels and meaning; the source of the table in `docs/operations.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric, with all values of its labels."""

    name: str
    kind: Literal["gauge", "counter", "info"]
    help: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, help: str, *labels: str) -> MetricFamily:
    return MetricFamily(name=name, kind="gauge", help=help, labels=labels)


def _counter(name: str, help: str, *labels: str) -> MetricFamily:
    return MetricFamily(name=name, kind="counter", help=help, labels=labels)


RUN = (
    MetricFamily(
        name="roll_run_info",
        kind="info",
        help="Always 1; its labels name the run, the release of roll, the recipe and the model.",
        labels=("run", "version", "algorithm", "model"),
    ),
    _gauge("roll_ready", "1 once this process has served its first version of the weights, else 0."),
    _gauge("roll_phase", "1 for the current phase of the run: load, start, a phase of a step, or idle.", "phase"),
    _gauge("roll_progress_age_seconds", "Seconds since the last event, sampled token, finished step or new phase."),
    _gauge("roll_start_timestamp_seconds", "Time at which this process started, in seconds since 1970."),
    _gauge("roll_planned_steps", "Steps of the whole run."),
)
STEPS = (
    _gauge("roll_step", "Newest finished step."),
    _gauge("roll_step_seconds", "Seconds of the newest step."),
    _gauge("roll_step_phase_seconds", "Seconds of the newest step in this phase.", "phase"),
    _counter("roll_phase_seconds_total", "Seconds in this phase over all steps of this process.", "phase"),
    _gauge("roll_tokens_per_second", "Tokens that the newest step trained on, divided by its seconds."),
    _gauge("roll_trajectories_per_second", "Trajectories that the newest step trained on, divided by its seconds."),
    _gauge("roll_reward_mean", "Mean reward of the newest step."),
    _gauge("roll_reward_std", "Standard deviation of the reward in the newest step."),
    _gauge("roll_domain_reward_mean", "Mean reward of a domain in the newest step that trained on it.", "domain"),
    _gauge("roll_held_out_accuracy_ratio", "Fraction of all held-out tasks solved in the newest validation, 0 to 1."),
    _gauge("roll_held_out_reward_mean", "Mean reward of all held-out tasks in the newest validation."),
    _gauge("roll_domain_held_out_accuracy_ratio", "The same fraction for the held-out tasks of a domain.", "domain"),
    _gauge("roll_domain_held_out_reward_mean", "The same mean for the held-out tasks of a domain.", "domain"),
    _gauge("roll_staleness_steps_mean", "Mean staleness of the trained tokens of the newest step, in steps."),
    _gauge("roll_staleness_steps_max", "Largest staleness of a trained token of the newest step, in steps."),
    _gauge("roll_sampler_mismatch_nats", "Mean |trainer logprob - sampler logprob| of the newest step."),
    _gauge("roll_response_tokens_mean", "Mean sampled tokens per trajectory of the newest step."),
    _gauge("roll_truncated_ratio", "Fraction of the trajectories of the newest step that a limit cut, 0 to 1."),
    _gauge("roll_loss", "Loss of the newest step."),
    _gauge("roll_gradient_norm", "Norm of the gradient of the newest step, before clipping."),
    _gauge("roll_entropy_nats", "Mean entropy of the next-token distribution in the newest step."),
    _gauge("roll_reference_kl_nats", "Mean estimated KL to the reference in the newest step."),
    _gauge("roll_sft_loss", "Mean negative logprob in the newest step of `roll sft`."),
    _gauge("roll_sft_accuracy_ratio", "Fraction of the held-out tasks solved in the newest validation of `roll sft`."),
)
JOURNAL = (
    _gauge("roll_weights_version", "Version of the weights that the generators serve."),
    _gauge("roll_weight_sync_seconds", "Seconds of the newest publication of weights, by part.", "part"),
    _gauge("roll_checkpoint_step", "Step of the newest durable checkpoint."),
    _gauge("roll_checkpoint_timestamp_seconds", "Time of the newest durable checkpoint, in seconds since 1970."),
    _counter("roll_groups_admitted_total", "Groups that took a slot."),
    _counter("roll_groups_completed_total", "Groups of which all siblings are valid."),
    _counter("roll_groups_dropped_total", "Groups that were replaced: failed, filtered or stale.", "cause"),
    _counter("roll_attempts_total", "Attempts that ended, by status; all but finished and truncated failed.", "status"),
    _counter("roll_attempts_retried_total", "Failed attempts that started again, by the status they had.", "status"),
    _counter("roll_tokens_sampled_total", "Tokens that the generators sampled in finished steps."),
    _counter("roll_tokens_discarded_total", "Tokens among these that arrived after the end of their request."),
    _counter("roll_requests_redispatched_total", "Requests sent to another generator because no response came."),
    _counter("roll_updates_total", "Updates of the weights: applied, or refused as not finite.", "result"),
    _counter("roll_worker_replacements_total", "Workers that died and were replaced.", "role"),
    _counter("roll_workers_moved_total", "Replacements that were placed on another node."),
    _counter("roll_nodes_awaited_total", "Replacements that waited for a node with room."),
    _counter("roll_controller_restarts_total", "Restarts of the controller by its supervisor."),
    _counter("roll_starts_total", "Starts of the run: the first one, and every continuation."),
    _counter("roll_tasks_quarantined_total", "Tasks that are not drawn again since their groups failed."),
    _counter("roll_hack_notices_total", "Notices of possible reward hacking, by sign.", "sign"),
    _counter("roll_proxy_refusals_total", "Requests of agents that the proxy refused, by HTTP status.", "status"),
    _counter("roll_validations_total", "Validations that finished."),
    _counter("roll_journal_events_total", "Events that the run has recorded."),
    _gauge("roll_journal_lag_events", "Recorded events that are not on disk yet."),
    _gauge("roll_journal_lag_seconds", "Seconds since the oldest of these was recorded, to about a second."),
)
LIVE = (
    _gauge("roll_group_slots", "Most groups in flight."),
    _gauge("roll_groups_in_flight", "Groups that hold a slot: admitted, and not part of published weights."),
    _gauge("roll_groups_ready", "Complete groups that wait for a step."),
    _gauge("roll_attempts_in_flight", "Attempts by what they wait for.", "state"),
)
MEMORY = (
    _gauge("roll_resident_memory_bytes", "Resident memory on this machine: controller, and its workers.", "process"),
    _gauge("roll_worker_processes", "Descendants of the controller on this machine."),
    _gauge("roll_memory_limit_bytes", "Memory that the run may use on this machine, or in its container."),
    _gauge("roll_device_memory_allocated_bytes", "Memory of tensors of the controller's process on a GPU.", "device"),
    _gauge("roll_device_memory_reserved_bytes", "Memory that torch holds for this process on a GPU.", "device"),
    _gauge("roll_device_memory_used_bytes", "Memory that all processes hold on a GPU of this machine.", "device"),
    _gauge("roll_device_memory_total_bytes", "Memory of a GPU of this machine.", "device"),
)
FAMILIES = {family.name: family for family in (*RUN, *STEPS, *JOURNAL, *LIVE, *MEMORY)}


def table() -> str:
    """The catalogue as a Markdown table."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | "
        f"{each.help.replace('|', chr(92) + '|')} |".replace("|  |", "| |")
        for each in FAMILIES.values()
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"
