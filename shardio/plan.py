"""Public names of the sample order: plans and schedules, pure functions of seed, epoch and position."""

from .order.plan import Order as Order
from .order.plan import Plan as Plan
from .order.plan import PlanSlice as PlanSlice
from .order.plan import Schedule as Schedule
from .order.plan import Shuffle as Shuffle
from .order.plan import Tail as Tail
