"""The experiments of the ROLL and ROLL Flash papers that scheduling explains: `roll bench paper NAME`."""
