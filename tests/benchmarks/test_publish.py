from benchmarks import publish


def test_the_ratio_is_of_bytes_per_second_and_verification_is_separate() -> None:
    verification = publish.Verification(bare_s=0.4, proven_s=0.5, digest_s=0.05, canary_s=1.0)
    result = publish._result(200_000_000, [0.1, 0.2, 0.4], [0.5, 0.25, 0.25], verification)
    assert (result.ours, result.peer, result.ratio) == (0.8, 1.0, 0.8)
    assert result.details["digest_on_top"] == 0.25, "a weight sync that takes 0.1 s more than 0.4 s"
    assert (result.details["digest_of_transport"], result.details["canary_of_transport"]) == (0.2, 4.0)
