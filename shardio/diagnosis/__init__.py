"""Is everything there that shardio can use? Software, machine, job and storage, each looked at without changing it."""

from .finding import Finding as Finding
from .finding import State as State
from .job import job as job
from .machine import machine as machine
from .software import software as software
from .storage import storage as storage
