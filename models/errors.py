"""What is raised for every model input that cannot be used."""


class ModelError(Exception):
    """A bad model folder, file, value or argument. The message names it and says what would do instead.

    `exit_code` is what the command line ends with: wrong usage or input.
    """

    exit_code = 2
