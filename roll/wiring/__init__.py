"""The only room that turns configuration into objects: models, data, and the parts of a run."""
