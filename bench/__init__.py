"""Measurements with targets: every module here that defines ``figures()`` is one group of ``make bench``."""
