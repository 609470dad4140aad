"""The findings of `shardio doctor` on software, machine, job and storage. Nothing is changed."""

from .machine import Finding as Finding
from .machine import job as job
from .machine import machine as machine
from .software import software as software
from .storage import storage as storage
