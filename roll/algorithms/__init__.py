"""Pure functions of tensors: credit, losses, denominators. No config, no process groups, no state."""
