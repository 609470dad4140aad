"""Settings for all tests."""

from hypothesis import settings

settings.register_profile("shardio", deadline=None)  # the duration of an example depends on the machine
settings.load_profile("shardio")
