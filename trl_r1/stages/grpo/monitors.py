"""What can go wrong in RL, judged by the figures that a trainer logs anyway.

Each monitor is a function from the logs so far to a `Finding` or None: what was seen, since when,
what it means, and which setting to change to what. `watching.py` calls them while a stage trains
and does what an alarm is to do.

A recipe says what an alarm does, and can move the limits:

    monitors:
      kl_runaway: rollback                  # warn (the default), stop, rollback or off
      truncation: {action: stop, above: 0.5}
      all: warn                             # what the monitors do that are not named

The default limits were set on some hundred runs of small models, on which two alarms came, both
with reason, and on runs that were made to fail, each of which its monitor finds
(`tests/test_monitors.py`).
A window is counted in logs, not in steps, since a log is the mean over `logging_steps` steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from trl_r1.stages.grpo.history import MASTERED, Finding, History

Limits = Mapping[str, float]


@dataclass(frozen=True)
class Monitor:
    """One monitor.

    Attributes:
        judge: from logs and limits to a finding.
        limits: its limits and their defaults.
    """

    judge: Callable[[History, Limits], Finding | None]
    limits: Limits


def kl_runaway(logs: History, limits: Limits) -> Finding | None:
    """The policy has left its reference, or the update has broken it."""
    lower_lr = f"learning_rate: {logs.setting('learning_rate', 1e-6) / 3:.1e}"
    for name in ("kl", "grad_norm", "loss", "entropy"):
        if logs.is_lost(name):
            before = logs.series(name)[-1][0]
            return Finding(
                f"{name} is no number any more since step {before}",
                before,
                "the weights or their gradients have overflowed; nothing after it is of use",
                f"{lower_lr}, max_grad_norm: 0.2, and bf16 in place of fp16",
            )
    values = logs.last("kl", int(limits["logs"]))
    if not values or median(values) <= limits["above"] or min(values) <= limits["above"] / 2:
        return None
    beta = logs.setting("beta", 0.0)
    return Finding(
        f"KL to the reference is {values[-1]:.3g} nats a token (limit {limits['above']:g}) over "
        f"{logs.span(len(values))}",
        logs.since("kl", lambda kl: kl > limits["above"] / 2),
        "the policy has run away from the model it started from; rewards mean little out there",
        f"{lower_lr}, or beta: {max(10 * beta, 0.001):g}",
        {"kl": values[-1]},
    )


def entropy_collapse(logs: History, limits: Limits) -> Finding | None:
    """Every answer comes out the same, before the task is learnt."""
    count = int(limits["logs"])
    values, series = logs.last("entropy", count), logs.series("entropy")
    if not values or len(series) < 2 * count:
        return None
    start = fmean([value for _, value in series[:count]])
    limit = max(limits["below"], limits["share"] * start)
    now = max(values)
    if now >= limit or not logs.is_stuck(count):
        return None
    advice = "epsilon_high: 0.28 (clip-higher)"
    if logs.setting("temperature", 1.0) < 1.0:
        advice = f"temperature: 1.0 (it is {logs.setting('temperature', 1.0):g}), then {advice}"
    else:
        advice += f", learning_rate: {logs.setting('learning_rate', 1e-6) / 2:.1e}"
    return Finding(
        f"entropy is {values[-1]:.3g} nats a token over {logs.span(count)} (it began at "
        f"{start:.3g}), and {_state(logs, count)}",
        logs.since("entropy", lambda entropy: entropy < limit),
        "the policy answers the same each time, so a group has nothing to compare",
        advice,
        {"entropy": values[-1], "entropy_at_start": start},
    )


def format_without_accuracy(logs: History, limits: Limits) -> Finding | None:
    """The format is learnt and the task is not."""
    window = int(limits["logs"])
    accuracy = logs.halves("accuracy", window)
    if accuracy is None or accuracy[1] >= MASTERED:
        return None
    for name in _reward_means(logs):
        rise = logs.halves(name, window)
        if "format" not in name or rise is None or rise[1] - rise[0] < limits["rise"]:
            continue
        if accuracy[1] - accuracy[0] >= limits["least_accuracy_rise"]:
            continue
        reward = name.split("/")[1]
        return Finding(
            f"{reward} rose from {rise[0]:.2f} to {rise[1]:.2f} over {logs.span(window)} while "
            f"accuracy went from {accuracy[0]:.2f} to {accuracy[1]:.2f}",
            rise[2],
            "the policy earns the format's share of the reward and learns no more; or the grader "
            "does not find its answers: read some in rollouts/",
            f"weight of {reward}: a fifth of the accuracy reward's or less; easier prompts, or a "
            "cold start, where accuracy is near 0; extraction: marked, if answers are there",
            {"format": rise[1], "accuracy": accuracy[1]},
        )
    return None


def length_explosion(logs: History, limits: Limits) -> Finding | None:
    """Completions grow and nothing comes of it."""
    window = int(limits["logs"])
    halves = logs.halves("completions/mean_length", window)
    if halves is None or halves[1] < limits["times"] * halves[0]:
        return None
    if not logs.is_stuck(window // 2):
        return None
    limit = logs.setting("max_completion_length", 2 * halves[1])
    return Finding(
        f"mean length went from {halves[0]:.0f} to {halves[1]:.0f} tokens over "
        f"{logs.span(window)}, and {_state(logs, window // 2)}",
        halves[2],
        "length grows for its own sake: a reward pays for it, or wrong answers are spun out "
        "(longer outputs dilute a penalty that is averaged over tokens)",
        f"add {{use: overlong, args: {{max_length: {limit:.0f}, soft_length: {limit / 5:.0f}}}}}, "
        "look for a reward that grows with length, or loss_type: dr_grpo",
        {"mean_length": halves[1]},
    )


def truncation(logs: History, limits: Limits) -> Finding | None:
    """Many completions are cut off, and it does not get better."""
    count = int(limits["logs"])
    values, series = logs.last("completions/clipped_ratio", count), logs.series(
        "completions/clipped_ratio"
    )  # fmt: skip
    if len(series) < 2 * count or not values or min(values) <= limits["above"]:
        return None
    before = fmean([value for _, value in series[-2 * count : -count]])
    if fmean(values) < 0.9 * before:
        return None  # on its way down, as a base model that learns to stop
    limit = logs.setting("max_completion_length", 0)
    return Finding(
        f"{fmean(values):.0%} of the completions were cut off at the limit"
        f"{f' of {limit:.0f} tokens' if limit else ''} over {logs.span(count)}",
        logs.since("completions/clipped_ratio", lambda share: share > limits["above"]),
        "a cut-off answer scores 0 however good its reasoning, so thinking longer is punished by "
        "chance",
        f"max_completion_length: {2 * limit:.0f} if memory allows, mask_truncated_completions: "
        "true, or the reward overlong; where completions never end, see that the template's end "
        "token is the model's",
        {"clipped_ratio": fmean(values)},
    )


def reward_hacking(logs: History, limits: Limits) -> Finding | None:
    """One reward rises while accuracy falls."""
    window = int(limits["logs"])
    name = "eval_accuracy" if len(logs.series("eval_accuracy")) >= window else "accuracy"
    accuracy = logs.halves(name, window)
    if accuracy is None or accuracy[0] - accuracy[1] < limits["accuracy_fall"]:
        return None
    own, rising = f"rewards/{logs.settings.get('accuracy_name')}/mean", []
    for metric in _reward_means(logs):
        halves = logs.halves(metric, window)
        if halves is not None and metric != own:
            spread = logs.last(metric.replace("/mean", "/std"), 1) or [0.0]
            rise = halves[1] - halves[0]
            if rise >= limits["rise"] * max(spread[-1], 0.2):
                rising.append((rise, metric.split("/")[1], halves))
    if not rising:
        return None
    _, reward, halves = max(rising)
    return Finding(
        f"{reward} rose from {halves[0]:.3g} to {halves[1]:.3g} over {logs.span(window)} while "
        f"{'held-out' if name == 'eval_accuracy' else 'training'} accuracy fell from "
        f"{accuracy[0]:.2f} to {accuracy[1]:.2f}",
        halves[2],
        f"the policy has found a way to earn {reward} that is not what it is for",
        f"weight of {reward}: half of what it is, or until_step: {halves[2]} (the paper gives "
        "preference rewards the last 400 of 1,700 steps only)",
        {"reward": halves[1], "accuracy": accuracy[1]},
    )


def dead_groups(logs: History, limits: Limits) -> Finding | None:
    """Groups whose completions all earn the same teach nothing."""
    count = int(limits["logs"])
    values = logs.last("frac_reward_zero_std", count)
    if not values or min(values) < limits["above"] or logs.has_mastered(count):
        return None
    accuracy = logs.last("accuracy", count)
    if accuracy and fmean(accuracy) < 0.1:
        cause, advice = "the prompts are too hard", "easier prompts, or a cold start before RL"
    elif accuracy:
        cause = "each prompt is either too easy or too hard, or answers come out the same"
        advice = "dynamic_sampling: true"
    else:
        cause, advice = "the rewards do not tell answers apart", "a reward that varies in a group"
    group = logs.setting("num_generations", 8)
    return Finding(
        f"{fmean(values):.0%} of the groups had equal rewards over {logs.span(count)}"
        + (f" at accuracy {fmean(accuracy):.2f}" if accuracy else ""),
        logs.since("frac_reward_zero_std", lambda share: share >= limits["above"]),
        f"{cause}; such a group has no advantage and is trained on for nothing",
        f"{advice}; num_generations: {2 * group:.0f}"
        + (", temperature: 1.0" if logs.setting("temperature", 1.0) < 1.0 else ""),
        {"dead_groups": fmean(values)},
    )


def ungradable_rows(logs: History, limits: Limits) -> Finding | None:
    """A reward has no verdict on many of the rows it is for."""
    count = int(limits["logs"])
    for name in logs.names:
        if not (name.startswith("rewards/") and name.endswith("/not_gradable")):
            continue
        values = logs.last(name, count)
        if values and min(values) > limits["above"]:
            reward = name.split("/")[1]
            return Finding(
                f"{reward} could not grade {fmean(values):.0%} of its rows over {logs.span(count)}",
                logs.since(name, lambda share: share > limits["above"]),
                "those rows are paid for and teach nothing: their gold answers can't be read, or "
                "the grader fails on them",
                f"look at verdict_{reward} in rollouts/, try `trl-r1 rewards check` with such "
                "rows, and take out the rows whose `solution` can't be read",
                {"not_gradable": fmean(values)},
            )
    return None


def language_drift(logs: History, limits: Limits) -> Finding | None:
    """The reasoning leaves the wanted language."""
    count = int(limits["logs"])
    series = [value for _, value in logs.series("language_share")]
    if len(series) < 2 * count:
        return None
    means = [fmean(series[i : i + count]) for i in range(len(series) - count + 1)]
    best, now = max(means), fmean(series[-count:])
    if now > best - limits["fall"]:
        return None
    has_reward = any("language" in name for name in _reward_means(logs))
    return Finding(
        f"{now:.0%} of the reasoning's words are in the wanted language over {logs.span(count)}; "
        f"it was {best:.0%}",
        logs.since("language_share", lambda share: share < best - limits["fall"] / 2),
        "languages mix, since nothing in the reward speaks against it",
        "twice the weight of language_consistency" if has_reward
        else "add {use: language_consistency, weight: 0.2} to rewards",
        {"language_share": now},
    )  # fmt: skip


def sampling_mismatch(logs: History, limits: Limits) -> Finding | None:
    """What vLLM samples from is not what is trained."""
    count = int(limits["logs"])
    gaps = logs.last("sampling/sampling_logp_difference/mean", count)
    ratios = logs.last("sampling/importance_sampling_ratio/mean", count)
    is_far = bool(gaps) and min(gaps) > limits["above"]
    is_off = bool(ratios) and all(abs(ratio - 1.0) > limits["ratio"] for ratio in ratios)
    if not (is_far or is_off):
        return None
    seen = f"log-probabilities differ by {gaps[-1]:.3g} a token" if gaps else ""
    seen += f", mean importance ratio {ratios[-1]:.3g}" if ratios else ""
    name = "sampling/sampling_logp_difference/mean" if is_far else ""
    return Finding(
        f"between vLLM and the trainer {seen.lstrip(', ')} over {logs.span(count)}",
        logs.since(name, lambda gap: gap > limits["above"]) if name else 0,
        "completions come from another policy than the one that learns from them",
        "cast_lm_head_to_fp32: true, one dtype for both, vllm_importance_sampling_correction: "
        "true; with 4-bit weights sample without vLLM, whose copy is not the trained one",
        {"logp_difference": gaps[-1] if gaps else 0.0, "ratio": ratios[-1] if ratios else 1.0},
    )


MONITORS: dict[str, Monitor] = {
    "kl_runaway": Monitor(kl_runaway, {"above": 1.0, "logs": 3}),
    "entropy_collapse": Monitor(entropy_collapse, {"below": 0.01, "share": 0.1, "logs": 5}),
    "format_without_accuracy": Monitor(
        format_without_accuracy, {"rise": 0.15, "least_accuracy_rise": 0.01, "logs": 20}
    ),
    "length_explosion": Monitor(length_explosion, {"times": 1.5, "logs": 20}),
    "truncation": Monitor(truncation, {"above": 0.3, "logs": 5}),
    "reward_hacking": Monitor(reward_hacking, {"rise": 0.5, "accuracy_fall": 0.1, "logs": 20}),
    "dead_groups": Monitor(dead_groups, {"above": 0.8, "logs": 5}),
    "ungradable_rows": Monitor(ungradable_rows, {"above": 0.1, "logs": 3}),
    "language_drift": Monitor(language_drift, {"fall": 0.1, "logs": 5}),
    "sampling_mismatch": Monitor(sampling_mismatch, {"above": 0.1, "ratio": 0.2, "logs": 3}),
}


def _reward_means(logs: History) -> list[str]:
    return [n for n in logs.names if n.startswith("rewards/") and n.endswith("/mean")]


def _state(logs: History, count: int) -> str:
    name = "accuracy" if logs.series("accuracy") else "reward"
    values = logs.last(name, count)
    return f"{name} stands at {fmean(values):.2f}" if values else f"{name} is not known"
