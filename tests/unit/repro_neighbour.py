"""Beside an operator's file."""

SIZES = {"n": 16}


def doubled(x):
    return _twice(x)


def _twice(x):
    return 2 * x


def scaled(x, by):
    return x * by


def unrelated():
    raise NotImplementedError
