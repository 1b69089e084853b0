"""The workload of `generate` is as documented."""

import math
import statistics

from benchmarks.generate import MAX_SEQ_LEN, VOCAB, workload


def test_the_workload_is_256_requests_with_prompts_of_8_to_64_tokens() -> None:
    lengths = [len(job.prompt) for job in workload()]
    assert len(lengths) == 256
    assert min(lengths) >= 8
    assert max(lengths) <= 64
    assert len(set(lengths)) > 40  # of 57 possible ones
    assert all(0 <= token < VOCAB for job in workload() for token in job.prompt)


def test_reply_lengths_are_log_normal_with_median_24_and_sigma_1_capped_at_256() -> None:
    lengths = [job.num_new for seed in range(20) for job in workload(seed)]
    logs = [math.log(length) for length in lengths]
    assert min(lengths) >= 1
    assert max(lengths) == 256
    assert 22 <= statistics.median(lengths) <= 26
    assert 0.93 <= statistics.stdev(logs) <= 1.03  # the cap takes a little off 1
    assert 0.005 < sum(length == 256 for length in lengths) / len(lengths) < 0.013  # P(z > ln(256 / 24)) = 0.009


def test_the_workload_is_the_same_every_time() -> None:
    assert workload() == workload()
    assert workload(0) != workload(1)


def test_the_longest_request_fits_the_context() -> None:
    assert max(len(job.prompt) + job.num_new for job in workload()) <= MAX_SEQ_LEN
