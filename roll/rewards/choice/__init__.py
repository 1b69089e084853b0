"""The reward `choice`: the one option of a multiple-choice task that a response commits to."""
