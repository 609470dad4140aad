"""Public names of the order: plans and schedules, as pure functions of seed, epoch and position."""

from .order.plan import Plan as Plan
from .order.plan import PlanSlice as PlanSlice
from .order.plan import Schedule as Schedule
from .order.plan import Shuffle as Shuffle
from .order.plan import Tail as Tail
