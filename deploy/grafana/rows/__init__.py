"""The rows of the dashboard, from the top: is there anything to ask, then five questions."""

from typing import Final

from grafana.panel import Row
from grafana.rows.affinity import AFFINITY
from grafana.rows.balance import BALANCE
from grafana.rows.bottleneck import BOTTLENECK
from grafana.rows.capacity import CAPACITY
from grafana.rows.disliked import DISLIKED
from grafana.rows.glance import AT_A_GLANCE

ROWS: Final[tuple[Row, ...]] = (AT_A_GLANCE, BALANCE, DISLIKED, AFFINITY, CAPACITY, BOTTLENECK)
