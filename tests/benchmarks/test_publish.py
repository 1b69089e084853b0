from benchmarks import publish


def test_the_ratio_is_of_bytes_a_second_and_the_proof_stands_apart() -> None:
    proof = publish.Proof(bare_s=0.4, proven_s=0.5, digest_s=0.05, canary_s=1.0)
    found = publish._result(200_000_000, [0.1, 0.2, 0.4], [0.5, 0.25, 0.25], proof)
    assert (found.ours, found.peer, found.ratio) == (0.8, 1.0, 0.8)
    assert found.details["digest_on_top"] == 0.25, "a publication that takes 0.1 s more than 0.4 s"
    assert (found.details["digest_of_transport"], found.details["canary_of_transport"]) == (0.2, 4.0)
