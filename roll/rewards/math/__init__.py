"""The reward `math`: exact comparison of answers, and math-verify in killable processes for the rest."""
