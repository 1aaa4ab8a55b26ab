"""What is raised for a checkpoint that cannot be used."""


class CheckpointError(ValueError):
    """The message names the file and the tensor, what is expected and what was found."""
