"""The launcher that started this process, and the rank that shardio detects."""

from ..errors import ConfigError
from ..order.world import World, launcher_variables
from .finding import Finding


def job() -> list[Finding]:
    """Return the variables of launchers that are set, and the World that shardio detects."""
    launchers = [
        Finding(launcher, "ok", ", ".join(f"{name}={value}" for name, value in found.items()))
        for launcher, found in launcher_variables().items()
        if found
    ]
    try:
        world = World.detect()
    except ConfigError as error:
        return [*launchers, Finding("World", "broken", str(error), "correct or unset that variable")]
    place = f"rank {world.rank} of {world.size}, local rank {world.local_rank} of {world.local_size}"
    alone = "" if launchers else "; no launcher's variables are set"
    return [*launchers, Finding("World", "ok", f"{place}{alone}")]
