from roll.bench import publish


def test_the_ratio_is_of_bytes_a_second_and_the_proof_stands_apart() -> None:
    found = publish._result(200_000_000, [0.1, 0.2, 0.4], [0.5, 0.25, 0.25], 0.05, 1.0)
    assert (found.ours, found.peer, found.ratio) == (0.8, 1.0, 0.8)
    assert (found.details["digest_on_top"], found.details["canary_on_top"]) == (0.2, 4.0)
